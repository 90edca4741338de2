"""What was read of a choice, as the members of a chat message and of a chunk's delta."""

from collections.abc import Sequence

from master.edge.http.json_object import encode
from master.parsing.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart

NO_NEWS = b'"content":""'


def delta_members(events: Sequence[Event]) -> bytes:
    """`content`, `reasoning_content` and `tool_calls`, as far as there is something of each; empty content if not."""
    match events:
        case []:
            return NO_NEWS
        case [ContentDelta(text)]:
            return b'"content":' + encode(text)
    message = CollectedMessage(events)
    members: dict[str, object] = {}
    if message.content:
        members["content"] = message.content
    if message.reasoning:
        members |= message.reasoning_members()
    if message.calls:
        members["tool_calls"] = [{"index": index, **call.delta()} for index, call in message.calls.items()]
    return encode(members)[1:-1] or NO_NEWS


class CollectedMessage:
    """Collects what a whole answer says, or what one output adds to it. `calls` are by their number."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: dict[int, _Call] = {}
        self.add(events)

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallStart(index):
                    self.calls[index] = _Call(event)
                case ToolCallArguments(index, text):
                    self.calls.setdefault(index, _Call(None)).arguments.append(text)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def reasoning_members(self) -> dict[str, object]:
        """The reasoning under the name SGLang has for it, and under vLLM's newer one."""
        reasoning = self.reasoning or None
        return {"reasoning_content": reasoning, "reasoning": reasoning}

    def whole(self) -> dict[str, object]:
        """OpenAI's message; content is null where there are only calls."""
        message: dict[str, object] = {
            "role": "assistant",
            "content": None if self.calls and not self._content else self.content,
            "refusal": None,
        }
        message |= self.reasoning_members()
        if self.calls:
            message["tool_calls"] = [call.delta() for call in self.calls.values()]
        return message


class _Call:
    """`start` is None where an earlier delta had it."""

    def __init__(self, start: ToolCallStart | None) -> None:
        self._start = start
        self.arguments: list[str] = []

    def delta(self) -> dict[str, object]:
        arguments = "".join(self.arguments)
        if self._start is None:
            return {"function": {"arguments": arguments}}
        return {
            "id": self._start.id,
            "type": "function",
            "function": {"name": self._start.name, "arguments": arguments},
        }
