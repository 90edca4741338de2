"""OpenAI's `tool_choice`: whether the model may call, must call, and what."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from master.parsing.tool_definitions import ToolDefinition, ToolError


class ToolChoiceMode(Enum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`tools` are those that may be called: all of them, the allowed ones, the named one, or none."""

    mode: ToolChoiceMode
    tools: tuple[ToolDefinition, ...]

    @property
    def demands_call(self) -> bool:
        return self.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)


def read_tool_choice(choice: object, tools: Sequence[ToolDefinition]) -> ToolChoice:
    """The field's value as JSON gave it; None (absent) is auto if there are tools, else none.

    Raises ToolError for anything else than none, auto, required, a function among `tools` and some of them, and for
    a demand to call without tools.
    """
    match choice:
        case None:
            return ToolChoice(ToolChoiceMode.AUTO if tools else ToolChoiceMode.NONE, tuple(tools))
        case "none":
            return ToolChoice(ToolChoiceMode.NONE, ())
        case "auto":
            return ToolChoice(ToolChoiceMode.AUTO if tools else ToolChoiceMode.NONE, tuple(tools))
        case "required":
            if not tools:
                raise ToolError("tool_choice", "is required, but there are no tools")
            return ToolChoice(ToolChoiceMode.REQUIRED, tuple(tools))
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(ToolChoiceMode.NAMED, _named("tool_choice.function.name", [name], tools))
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)}}:
            where = "tool_choice.allowed_tools.tools"
            return read_tool_choice(mode, _named(where, [_name(where, tool) for tool in allowed], tools))
    told = "none, auto, required, a named function or allowed_tools"
    raise ToolError("tool_choice", f"is {repr(choice)[:100]}; it must be {told}")


def _named(where: str, names: Sequence[str], tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    known = {tool.name: tool for tool in tools}
    for name in names:
        if name not in known:
            raise ToolError(where, f"is {name[:100]!r}, which is not among tools")
    return tuple(known[name] for name in dict.fromkeys(names))


def _name(where: str, tool: object) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise ToolError(where, f"has {repr(tool)[:100]}, which is no function's name")
