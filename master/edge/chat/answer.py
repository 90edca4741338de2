"""Chat completions on the wire: https://platform.openai.com/docs/api-reference/chat

A stream's events are put together from bytes, since one is made for each token.
"""

from collections.abc import Sequence

import msgspec

from master.edge.chat.body import ChatBody
from master.edge.chat.message import CollectedMessage, delta_members
from master.edge.conversation.chat_request import ChatRequest
from master.edge.http import sse
from master.edge.http.errors import error_body
from master.edge.http.json_object import NULL, encode, members
from master.edge.openai.chunk import ChunkWriter
from master.edge.openai.collected_choice import CollectedChoice
from master.edge.openai.finish_reason import UNFINISHED, finish_members
from master.edge.openai.logprobs import ChatLogprobs, prompt_logprobs
from master.edge.openai.usage import AnswerUsage
from master.errors import ServingError
from master.output import GenerationOutput, SequenceDelta
from master.parsing.events import Event
from master.request import GenerationRequest
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import TokenLogprobs


class ChatStream:
    """`chat.completion.chunk` events, one for each choice of an output."""

    is_streamed = True

    def __init__(self, body: ChatBody, chat: ChatRequest, created: int, tokenizer: Tokenizer) -> None:
        request = chat.request
        self.id = f"chatcmpl-{request.id}"
        self.requests: Sequence[GenerationRequest] = (request,)
        self._readers = chat.readers
        self._usage = AnswerUsage(self.requests)
        self._frame = ChunkWriter(
            body, self._usage, answer_id=self.id, kind="chat.completion.chunk", created=created, model=request.model
        )
        self._logprobs = ChatLogprobs(tokenizer, body.tokens_as_ids) if body.logprobs else None
        self._returns_ids = bool(body.return_token_ids)
        self._shows_every_token = bool(body.logprobs or body.return_token_ids or body.has_continuous_usage)
        self._echo = body.echoed_events()
        self._opened: set[int] = set()

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._usage.add(prompt, output)
        return b"".join([self._events(delta) for delta in output.deltas])

    def end(self) -> bytes:
        self._usage.require_complete()
        return self._frame.end(sum(reader.num_reasoning_tokens for reader in self._readers))

    def fail(self, error: ServingError) -> bytes:
        return sse.event(error_body(error))

    def _events(self, delta: SequenceDelta) -> bytes:
        is_first = delta.index not in self._opened
        read = self._readers[delta.index].read(delta)
        news = [*self._echo, *read.events] if is_first else read.events
        events = b""
        if news or is_first or (self._shows_every_token and delta.token_ids):
            events = self._event(delta, news, is_first)
        if read.finish_reason is not None:
            events += self._frame.choice_end(
                delta.index, b'"delta":{}', read.finish_reason, delta.matched_stop, self.requests[0]
            )
        return events

    def _event(self, delta: SequenceDelta, news: Sequence[Event], is_first: bool) -> bytes:
        self._opened.add(delta.index)
        choice = b'{"index":%d,"delta":{%s%s},"logprobs":%s,%s%s}' % (
            delta.index,
            b'"role":"assistant",' if is_first else b"",
            delta_members(news),
            self._logprobs_of(delta),
            UNFINISHED,
            self._extensions(delta),
        )
        shows_prompt = is_first and self._returns_ids
        return self._frame.event(
            choice, b',"prompt_token_ids":' + encode(self.requests[0].prompt_ids) if shows_prompt else b""
        )

    def _extensions(self, delta: SequenceDelta) -> bytes:
        ids = b',"token_ids":' + encode(delta.token_ids) if self._returns_ids else b""
        return ids + self._frame.arrival_member(self.requests[0])

    def _logprobs_of(self, delta: SequenceDelta) -> bytes:
        if self._logprobs is None or not delta.logprobs:
            return NULL
        return encode({"content": self._logprobs.content(delta.token_ids, delta.logprobs), "refusal": None})


class ChatResponse:
    """One `chat.completion`."""

    is_streamed = False

    def __init__(self, body: ChatBody, chat: ChatRequest, created: int, tokenizer: Tokenizer) -> None:
        request = chat.request
        self.id = f"chatcmpl-{request.id}"
        self.requests: Sequence[GenerationRequest] = (request,)
        self._readers = chat.readers
        self._body = body
        self._created = created
        self._tokenizer = tokenizer
        self._usage = AnswerUsage(self.requests)
        self._choices = [CollectedChoice() for _ in range(request.n)]
        self._messages = [CollectedMessage(body.echoed_events()) for _ in range(request.n)]
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._usage.add(prompt, output)
        self._prompt_logprobs += output.prompt_logprobs
        for delta in output.deltas:
            read = self._readers[delta.index].read(delta)
            self._choices[delta.index].add(msgspec.structs.replace(delta, finish_reason=read.finish_reason))
            self._messages[delta.index].add(read.events)
        return b""

    def end(self) -> bytes:
        self._usage.require_complete()
        request = self.requests[0]
        ranked = None
        if request.sampling.prompt_logprobs is not None:
            ranked = prompt_logprobs(self._tokenizer, request.prompt_ids, self._prompt_logprobs)
        return b"{%s}" % members(
            id=encode(self.id),
            object=b'"chat.completion"',
            created=b"%d" % self._created,
            model=encode(request.model),
            choices=b"[%s]" % b",".join(self._choice(index, choice) for index, choice in enumerate(self._choices)),
            usage=self._usage.usage(sum(reader.num_reasoning_tokens for reader in self._readers)),
            prompt_logprobs=encode(ranked),
            prompt_token_ids=encode(request.prompt_ids if self._body.return_token_ids else None),
            **self._usage.timings(self._body),
        )

    def _choice(self, index: int, choice: CollectedChoice) -> bytes:
        logprobs: object = None
        if self._body.logprobs:
            content = ChatLogprobs(self._tokenizer, self._body.tokens_as_ids).content(choice.token_ids, choice.logprobs)
            logprobs = {"content": content, "refusal": None}
        return b'{"index":%d,"message":%s,"logprobs":%s,%s,"token_ids":%s}' % (
            index,
            encode(self._messages[index].whole()),
            encode(logprobs),
            finish_members(choice.finish_reason, choice.matched_stop),
            encode(choice.token_ids if self._body.return_token_ids else None),
        )
