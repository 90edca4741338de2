"""What is around the choices in a stream of chunks."""

import time

from master.edge.fields.completion import CompletionFields
from master.edge.http import sse
from master.edge.http.json_object import encode, members
from master.edge.openai.finish_reason import finish_members
from master.edge.openai.usage import AnswerUsage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason

NO_IDS = b',"token_ids":[]'


class ChunkWriter:
    """id, object, created and model never change in a stream, so they are encoded once."""

    def __init__(
        self, body: CompletionFields, usage: AnswerUsage, *, answer_id: str, kind: str, created: int, model: str
    ) -> None:
        self._body = body
        self._usage = usage
        head = members(id=encode(answer_id), object=encode(kind), created=b"%d" % created, model=encode(model))
        self._head = b'data: {%s,"choices":[' % head
        self._plain_tail = b'],"usage":null}\n\n' if body.includes_usage else b"]}\n\n"

    def arrival_member(self, request: GenerationRequest) -> bytes:
        """FastDeploy's `arrival_time`: seconds since the request came, beside a usage that is sent all along."""
        if not self._body.has_continuous_usage:
            return b""
        return b',"arrival_time":%.6f' % (time.monotonic() - request.arrived_s)

    def event(self, choice: bytes, more: bytes = b"") -> bytes:
        """A chunk of one choice; `more` are members of the chunk, each after a comma."""
        if self._body.has_continuous_usage:
            return b'%s%s],"usage":%s%s}\n\n' % (self._head, choice, self._usage.usage_so_far(), more)
        return self._head + choice + (b"]" + more + self._plain_tail[1:] if more else self._plain_tail)

    def choice_end(
        self,
        index: int,
        nothing: bytes,
        reason: FinishReason,
        matched_stop: str | int | None,
        request: GenerationRequest,
    ) -> bytes:
        """A chunk that only tells how its choice ended: some clients drop the text that comes beside it.

        `nothing` is the member of a choice that adds no text.
        """
        ended = finish_members(reason, matched_stop) + self.arrival_member(request)
        ids = NO_IDS if self._body.return_token_ids else b""
        return self.event(b'{"index":%d,%s,"logprobs":null,%s%s}' % (index, nothing, ended, ids))

    def end(self, num_reasoning_tokens: int | None = None) -> bytes:
        """A chunk without choices, if usage or timeline was asked for, and the end of the stream."""
        last: dict[str, bytes] = {}
        if self._body.includes_usage:
            last["usage"] = self._usage.usage(num_reasoning_tokens)
        last |= self._usage.timings(self._body)
        return (b"%s],%s}\n\n" % (self._head, members(**last)) if last else b"") + sse.DONE
