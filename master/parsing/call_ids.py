"""Numbers and names the calls of one output."""

import secrets
from collections.abc import Callable, Mapping, Sequence

from master.parsing.events import ToolCallStart
from master.parsing.tool_definitions import ToolDefinition

MISTRAL_ID_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def openai_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def mistral_call_id() -> str:
    """Nine letters or digits: Mistral's templates refuse any other when the call comes back in a chat."""
    return "".join(secrets.choice(MISTRAL_ID_ALPHABET) for _ in range(9))


class CallSeries:
    """`tools` are those that may be called, for formats whose values say nothing of their type."""

    def __init__(self, new_id: Callable[[], str], tools: Sequence[ToolDefinition] = ()) -> None:
        self._new_id = new_id
        self._tools = {tool.name: tool for tool in tools}
        self.count = 0

    def start(self, name: str, call_id: str | None = None) -> ToolCallStart:
        """`call_id` is the model's own, if it gave one."""
        start = ToolCallStart(self.count, call_id or self._new_id(), name)
        self.count += 1
        return start

    def parameters_of(self, name: str) -> Mapping[str, object]:
        """The schema of a tool's arguments, empty for one that is not known."""
        tool = self._tools.get(name)
        return {} if tool is None else tool.parameters
