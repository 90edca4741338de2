"""A completion's prompt, and whether it opens the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from master.edge.openai.logprobs import CompletionLogprobs, CompletionLogprobsWriter
from master.request import GenerationRequest
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """`text` comes before each choice's own: the prompt's text where the client wants it echoed, else nothing.

    A prompt given as ids is echoed with its special tokens; what the tokenizer added to a text is not.
    """

    request: GenerationRequest
    text: str
    is_echoed: bool
    was_text: bool

    def open_logprobs(
        self, into: CompletionLogprobs, logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer, tokens_as_ids: bool
    ) -> CompletionLogprobsWriter:
        """What writes a choice's log-probabilities. Those of an echoed prompt are written here."""
        ids = self.request.prompt_ids
        if self.is_echoed:
            writer = CompletionLogprobsWriter(
                tokenizer, (), skip_special_tokens=self.was_text, tokens_as_ids=tokens_as_ids
            )
            # a worker that gave none must not shift what comes after
            writer.write(into, ids, [*logprobs, *[TokenLogprobs()] * (len(ids) - len(logprobs))])
        return CompletionLogprobsWriter(
            tokenizer,
            ids,
            skip_special_tokens=self.request.skip_special_tokens,
            tokens_as_ids=tokens_as_ids,
            num_characters=len(self.text),
        )
