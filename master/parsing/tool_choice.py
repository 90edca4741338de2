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
    """`tools` are those that may be called: all of them, the named one, or none."""

    mode: ToolChoiceMode
    tools: tuple[ToolDefinition, ...]


def read_tool_choice(choice: object, tools: Sequence[ToolDefinition]) -> ToolChoice:
    """The field's value as JSON gave it; None (absent) is auto if there are tools, else none.

    Raises ToolError for anything else than none, auto, required and a function among `tools`, and for a demand
    to call without tools.
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
            named = tuple(tool for tool in tools if tool.name == name)
            if not named:
                raise ToolError("tool_choice.function.name", f"is {name[:100]!r}, which is not among tools")
            return ToolChoice(ToolChoiceMode.NAMED, named)
    raise ToolError("tool_choice", f"is {repr(choice)[:100]}; it must be none, auto, required or a named function")
