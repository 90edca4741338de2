"""Text completions on the wire: https://platform.openai.com/docs/api-reference/completions

Choices are numbered through all prompts: prompt * n + sequence.
"""

from collections.abc import Sequence

from master.edge.completions.body import CompletionBody
from master.edge.completions.prompt import CompletionPrompt
from master.edge.http import sse
from master.edge.http.errors import error_body
from master.edge.http.json_object import NULL, encode, members
from master.edge.openai.chunk import ChunkWriter
from master.edge.openai.collected_choice import CollectedChoice
from master.edge.openai.finish_reason import UNFINISHED, finish_members
from master.edge.openai.logprobs import CompletionLogprobs, CompletionLogprobsWriter, prompt_logprobs
from master.edge.openai.usage import AnswerUsage
from master.errors import ServingError
from master.output import GenerationOutput, SequenceDelta
from master.request import GenerationRequest
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import TokenLogprobs


class CompletionStream:
    """`text_completion` events, one for each choice of an output. An echoed prompt is in its choice's first."""

    is_streamed = True

    def __init__(
        self,
        body: CompletionBody,
        prompts: Sequence[CompletionPrompt],
        created: int,
        tokenizer: Tokenizer,
    ) -> None:
        self.requests: Sequence[GenerationRequest] = [prompt.request for prompt in prompts]
        first = self.requests[0]
        self.id = f"cmpl-{first.id}"
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._usage = AnswerUsage(self.requests)
        self._frame = ChunkWriter(
            body, self._usage, answer_id=self.id, kind="text_completion", created=created, model=first.model
        )
        self._body = body
        self._has_logprobs = body.sampling_options().get("logprobs") is not None
        self._shows_every_token = bool(self._has_logprobs or body.return_token_ids or body.has_continuous_usage)
        self._opened: set[int] = set()
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._usage.add(prompt, output)
        if output.prompt_logprobs:
            self._prompt_logprobs[prompt] = self._prompt_logprobs.get(prompt, ()) + output.prompt_logprobs
        return b"".join([self._events(prompt, delta) for delta in output.deltas])

    def end(self) -> bytes:
        self._usage.require_complete()
        return self._frame.end()

    def fail(self, error: ServingError) -> bytes:
        return sse.event(error_body(error))

    def _events(self, prompt: int, delta: SequenceDelta) -> bytes:
        index = self._usage.index(prompt, delta.index)
        is_first = index not in self._opened
        events = b""
        if delta.text or is_first or (self._shows_every_token and delta.token_ids):
            events = self._event(prompt, index, delta, is_first)
        if delta.finish_reason is not None:
            events += self._frame.choice_end(
                index, b'"text":""', delta.finish_reason, delta.matched_stop, self._prompts[prompt].request
            )
        return events

    def _event(self, prompt: int, index: int, delta: SequenceDelta, is_first: bool) -> bytes:
        self._opened.add(index)
        echoed = self._prompts[prompt]
        extensions = self._frame.arrival_member(echoed.request)
        if self._body.return_token_ids:
            extensions += b',"token_ids":' + encode(delta.token_ids)
            if is_first:
                extensions += b',"prompt_token_ids":' + encode(echoed.request.prompt_ids)
        return self._frame.event(
            b'{"index":%d,"text":%s,"logprobs":%s,%s%s}'
            % (
                index,
                encode(echoed.text + delta.text if is_first else delta.text),
                self._logprobs_of(prompt, index, delta) if self._has_logprobs else NULL,
                UNFINISHED,
                extensions,
            )
        )

    def _logprobs_of(self, prompt: int, index: int, delta: SequenceDelta) -> bytes:
        logprobs = CompletionLogprobs()
        if index not in self._writers:
            self._writers[index] = self._prompts[prompt].open_logprobs(
                logprobs, self._prompt_logprobs.get(prompt, ()), self._tokenizer, self._body.tokens_as_ids
            )
        self._writers[index].write(logprobs, delta.token_ids, delta.logprobs)
        return encode(logprobs)


class CompletionResponse:
    """One `text_completion`; of best_of sequences the n with the best mean log-probability."""

    is_streamed = False

    def __init__(
        self, body: CompletionBody, prompts: Sequence[CompletionPrompt], created: int, tokenizer: Tokenizer
    ) -> None:
        self.requests: Sequence[GenerationRequest] = [prompt.request for prompt in prompts]
        self.id = f"cmpl-{self.requests[0].id}"
        self._body = body
        self._asked = body.sampling_options()
        self._prompts = prompts
        self._created = created
        self._tokenizer = tokenizer
        self._usage = AnswerUsage(self.requests)
        self._choices = [[CollectedChoice() for _ in range(request.n)] for request in self.requests]
        self._prompt_logprobs: list[tuple[TokenLogprobs, ...]] = [() for _ in prompts]

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._usage.add(prompt, output)
        self._prompt_logprobs[prompt] += output.prompt_logprobs
        for delta in output.deltas:
            self._choices[prompt][delta.index].add(delta)
        return b""

    def end(self) -> bytes:
        self._usage.require_complete()
        choices: list[bytes] = []
        for prompt in range(len(self._prompts)):
            for choice in self._best(self._choices[prompt]):
                choices.append(self._choice(len(choices), prompt, choice))
        return b"{%s}" % members(
            id=encode(self.id),
            object=b'"text_completion"',
            created=b"%d" % self._created,
            model=encode(self.requests[0].model),
            choices=b"[%s]" % b",".join(choices),
            usage=self._usage.usage(None),
            **self._usage.timings(self._body),
        )

    def _best(self, choices: list[CollectedChoice]) -> list[CollectedChoice]:
        n = self._asked.get("n") or 1
        if len(choices) <= n:
            return choices
        return sorted(choices, key=lambda choice: choice.mean_logprob, reverse=True)[:n]

    def _choice(self, index: int, prompt: int, choice: CollectedChoice) -> bytes:
        echoed = self._prompts[prompt]
        logprobs: CompletionLogprobs | None = None
        if self._asked.get("logprobs") is not None:
            logprobs = CompletionLogprobs()
            writer = echoed.open_logprobs(
                logprobs, self._prompt_logprobs[prompt], self._tokenizer, self._body.tokens_as_ids
            )
            writer.write(logprobs, choice.token_ids, choice.logprobs)
        ids, ranked = echoed.request.prompt_ids, None
        if self._asked.get("prompt_logprobs") is not None:
            ranked = prompt_logprobs(self._tokenizer, ids, self._prompt_logprobs[prompt])
        returns_ids = self._body.return_token_ids
        extensions = members(
            prompt_logprobs=encode(ranked),
            token_ids=encode(choice.token_ids if returns_ids else None),
            prompt_token_ids=encode(ids if returns_ids else None),
        )
        return b'{"index":%d,"text":%s,"logprobs":%s,%s,%s}' % (
            index,
            encode(echoed.text + choice.text),
            encode(logprobs),
            finish_members(choice.finish_reason, choice.matched_stop),
            extensions,
        )
