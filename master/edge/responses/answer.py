"""Responses on the wire: https://platform.openai.com/docs/api-reference/responses-streaming

An item is output_item.added, for text and reasoning content_part.added, its deltas, their done, content_part.done,
output_item.done. The whole stream is between response.created and response.completed, incomplete or failed.
"""

from collections.abc import Sequence

from master.edge.conversation.chat_request import ChatRequest
from master.edge.conversation.content_blocks import Block, BlockKind, Change, Closed, Grown, Opened
from master.edge.conversation.single_output import SingleOutput
from master.edge.http import sse
from master.edge.http.errors import bounded
from master.edge.http.json_object import encode
from master.edge.openai.logprobs import ChatLogprobs
from master.edge.responses.body import ResponsesBody
from master.edge.responses.output_items import ItemStatus, content_part, item_id, output_item
from master.edge.responses.response_object import ResponseObject, end_status
from master.edge.responses.store import Keep
from master.errors import ServingError
from master.output import GenerationOutput
from master.request import GenerationRequest

# The events of a block's text, before `.delta` and `.done`, and the field that has it whole.
TEXT_EVENTS = {
    BlockKind.TEXT: ("response.output_text", "text"),
    BlockKind.REASONING: ("response.reasoning_text", "text"),
    BlockKind.CALL: ("response.function_call_arguments", "arguments"),
}


class ResponsesWhole:
    is_streamed = False

    def __init__(
        self, body: ResponsesBody, chat: ChatRequest, created: int, logprobs: ChatLogprobs, keep: Keep | None
    ) -> None:
        """`keep` stores the response, once it is whole."""
        self._keep = keep
        self._response = ResponseObject(body, chat.request, created, is_stored=keep is not None)
        self.id = self._response.id
        self.requests: Sequence[GenerationRequest] = (chat.request,)
        self._output = SingleOutput(chat, logprobs if chat.request.sampling.logprobs is not None else None)

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._output.add(output)
        return b""

    def end(self) -> bytes:
        output = self._output
        output.require_complete()
        response = self._response.ended(output.blocks, output.finish_reason, output.usage, output.num_reasoning_tokens)
        if self._keep is not None:
            self._keep(response)
        return encode(response)


class ResponsesStream:
    is_streamed = True

    def __init__(
        self, body: ResponsesBody, chat: ChatRequest, created: int, logprobs: ChatLogprobs, keep: Keep | None
    ) -> None:
        """`keep` stores the response, once it is whole."""
        self._keep = keep
        self._response = ResponseObject(body, chat.request, created, is_stored=keep is not None)
        self.id = self._response.id
        self.requests: Sequence[GenerationRequest] = (chat.request,)
        self._request_id = chat.request.id
        self._output = SingleOutput(chat, logprobs if chat.request.sampling.logprobs is not None else None)
        self._num_events = 0

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        changes = self._output.add(output)
        events: list[bytes] = []
        if self._num_events == 0:
            events.append(self._event("response.created", response=self._response.in_progress()))
            events.append(self._event("response.in_progress", response=self._response.in_progress()))
        for change in changes:
            events += self._events(change)
        return b"".join(events)

    def end(self) -> bytes:
        output = self._output
        output.require_complete()
        response = self._response.ended(output.blocks, output.finish_reason, output.usage, output.num_reasoning_tokens)
        if self._keep is not None:
            self._keep(response)
        return self._event(f"response.{response['status']}", response=response)

    def fail(self, error: ServingError) -> bytes:
        told = self._event(
            "error", code=error.code or error.kind.value, message=bounded(error.message), param=error.field
        )
        return told + self._event("response.failed", response=self._response.failed(self._output.blocks, error))

    def _events(self, change: Change) -> list[bytes]:
        block = change.block
        where: dict[str, object] = {"output_index": block.index, "item_id": item_id(block, self._request_id)}
        if block.kind is not BlockKind.CALL:
            where["content_index"] = 0
        match change:
            case Opened():
                return self._opened(block, where)
            case Grown(_, text, logprobs):
                name = f"{TEXT_EVENTS[block.kind][0]}.delta"
                return [self._event(name, **where, delta=text, **_logprobs(block, logprobs))]
            case Closed():
                return self._closed(block, where)

    def _opened(self, block: Block, where: dict[str, object]) -> list[bytes]:
        item = output_item(block, self._request_id, ItemStatus.IN_PROGRESS)
        events = [self._event("response.output_item.added", output_index=block.index, item=item)]
        if block.kind is not BlockKind.CALL:
            events.append(self._event("response.content_part.added", **where, part=content_part(block)))
        return events

    def _closed(self, block: Block, where: dict[str, object]) -> list[bytes]:
        name, field = TEXT_EVENTS[block.kind]
        text = block.text
        events = [self._event(f"{name}.done", **where, **{field: text}, **_logprobs(block, block.logprobs))]
        if block.kind is not BlockKind.CALL:
            events.append(self._event("response.content_part.done", **where, part=content_part(block)))
        item = output_item(block, self._request_id, self._end_status(block))
        events.append(self._event("response.output_item.done", output_index=block.index, item=item))
        return events

    def _end_status(self, block: Block) -> ItemStatus:
        """A block that another one follows is complete, whatever becomes of that."""
        if self._output.has_ended:
            return end_status(block, self._output.blocks, self._output.finish_reason)
        return ItemStatus.COMPLETED

    def _event(self, name: str, **fields: object) -> bytes:
        number = self._num_events
        self._num_events += 1
        return sse.named_event(name, encode({"type": name, "sequence_number": number, **fields}))


def _logprobs(block: Block, logprobs: Sequence[object]) -> dict[str, object]:
    """Clients look for the list, even if it is empty."""
    return {"logprobs": logprobs} if block.kind is BlockKind.TEXT else {}
