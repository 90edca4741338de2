"""Messages on the wire: https://docs.anthropic.com/en/api/messages-streaming

A stream is message_start; for each block content_block_start, its deltas, content_block_stop; message_delta with the
stop reason and the usage; message_stop.
"""

from collections.abc import Sequence

import msgspec

from master.edge.conversation.chat_request import ChatRequest
from master.edge.conversation.content_blocks import Block, BlockKind, Change, Closed, Grown, Opened
from master.edge.conversation.single_output import SingleOutput
from master.edge.http import sse
from master.edge.http.json_object import encode
from master.edge.messages.error import messages_error_body
from master.errors import ServingError
from master.output import GenerationOutput
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason

PING = sse.named_event("ping", b'{"type":"ping"}')  # as Anthropic sends it when a message has begun
# The delta of a kind of block, and the field that its text is in.
DELTAS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageWhole:
    is_streamed = False

    def __init__(self, chat: ChatRequest) -> None:
        self.id = f"msg_{chat.request.id}"
        self.requests: Sequence[GenerationRequest] = (chat.request,)
        self._output = SingleOutput(chat)

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        self._output.add(output)
        return b""

    def end(self) -> bytes:
        self._output.require_complete()
        content = [_block(block, is_whole=True) for block in self._output.blocks]
        return encode(
            {
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "model": self.requests[0].model,
                "content": content,
                **_stop(self._output),
                "usage": _usage(self._output),
            }
        )


class MessageStream:
    is_streamed = True

    def __init__(self, chat: ChatRequest) -> None:
        self.id = f"msg_{chat.request.id}"
        self.requests: Sequence[GenerationRequest] = (chat.request,)
        self._output = SingleOutput(chat)
        self._has_begun = False

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        changes = self._output.add(output)
        events = [_event(change) for change in changes]
        if not self._has_begun:
            self._has_begun = True
            events.insert(0, self._start() + PING)
        return b"".join(events)

    def end(self) -> bytes:
        self._output.require_complete()
        last = {"type": "message_delta", "delta": _stop(self._output), "usage": _usage(self._output)}
        return sse.named_event("message_delta", encode(last)) + sse.named_event(
            "message_stop", encode({"type": "message_stop"})
        )

    def fail(self, error: ServingError) -> bytes:
        return sse.named_event("error", messages_error_body(error))

    def _start(self) -> bytes:
        """How much of the prompt was cached comes with the end."""
        request = self.requests[0]
        message: dict[str, object] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(request.prompt_ids), "output_tokens": 0},
        }
        return sse.named_event("message_start", encode({"type": "message_start", "message": message}))


def _event(change: Change) -> bytes:
    block = change.block
    match change:
        case Opened():
            name, fields = "content_block_start", {"content_block": _block(block, is_whole=False)}
        case Grown(_, text):
            kind, field = DELTAS[block.kind]
            name, fields = "content_block_delta", {"delta": {"type": kind, field: text}}
        case Closed():
            name, fields = "content_block_stop", {}
    return sse.named_event(name, encode({"type": name, "index": block.index, **fields}))


def _block(block: Block, *, is_whole: bool) -> dict[str, object]:
    """A block has all its text only when it is whole; it begins with none."""
    text = block.text if is_whole else ""
    match block.kind:
        case BlockKind.TEXT:
            return {"type": "text", "text": text}
        case BlockKind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case BlockKind.CALL:
            assert block.call is not None
            arguments = _arguments(text) if is_whole else {}
            return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": arguments}


def _arguments(text: str) -> dict[str, object]:
    """What the model wrote wrong, or was kept from writing to its end, is passed on in the way Anthropic advises."""
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": text}


def _stop(output: SingleOutput) -> dict[str, object]:
    matched = output.matched_stop if isinstance(output.matched_stop, str) else None
    match output.finish_reason:
        case FinishReason.TOOL_CALLS:
            reason = "tool_use"
        case FinishReason.LENGTH:
            reason = "max_tokens"
        case _:
            reason = "end_turn" if matched is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": matched if reason == "stop_sequence" else None}


def _usage(output: SingleOutput) -> dict[str, object]:
    """Cached tokens of the prompt are no input tokens in this API."""
    usage = output.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": output.num_reasoning_tokens},
    }
