"""A completion's prompt, and whether it opens the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from master.edge.openai.logprobs import CompletionLogprobs, CompletionLogprobsWriter
from master.request import GenerationRequest
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """`text` comes before each choice's own: the prompt's text where the client wants it echoed, else nothing."""

    request: GenerationRequest
    text: str
    is_echoed: bool

    def open_logprobs(
        self, into: CompletionLogprobs, logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer
    ) -> CompletionLogprobsWriter:
        """What writes a choice's log-probabilities; those of an echoed prompt it has written."""
        ids = self.request.prompt_ids
        tail = () if self.is_echoed else ids
        writer = CompletionLogprobsWriter(tokenizer, tail, self.request.skip_special_tokens)
        if self.is_echoed:
            # a worker that gave none must not shift what comes after
            writer.write(into, ids, [*logprobs, *[TokenLogprobs()] * (len(ids) - len(logprobs))])
        return writer
