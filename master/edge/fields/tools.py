"""Reads what a request says of tools, once for all chat APIs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.edge.fields.nesting import check_nesting
from master.errors import invalid
from master.parsing.tool_choice import ToolChoice, ToolChoiceMode, read_tool_choice
from master.parsing.tool_definitions import ToolError, read_tools

Tools = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`template_tools` are what the chat template shows the model: none if it must not call.

    `rename` turns the path of a field into what the client knows it as.
    """

    choice: ToolChoice
    is_parallel: bool
    template_tools: Tools | None
    rename: Callable[[str], str] = str

    @property
    def may_call(self) -> bool:
        return self.choice.mode is not ToolChoiceMode.NONE


def read_tool_use(
    tools: Sequence[dict[str, object]] | None,
    tool_choice: object,
    is_parallel: bool | None,
    rename: Callable[[str], str] = str,
) -> ToolUse:
    """`tools` and `tool_choice` in the form of chat completions; `is_parallel` is true unless said otherwise.

    Raises ServingError naming what is wrong.
    """
    for index, tool in enumerate(tools or ()):
        check_nesting(f"tools[{index}]", tool)
    try:
        every = read_tools(tools or ())
        choice = read_tool_choice(tool_choice, every)
    except ToolError as error:
        field = rename(error.field)
        raise invalid(field, str(error).replace(error.field, field, 1)) from error
    # the model hears of all functions of which one is named, but only of those that are allowed
    heard = {ToolChoiceMode.NONE: (), ToolChoiceMode.NAMED: every}.get(choice.mode, choice.tools)
    names = {definition.name for definition in heard}
    shown = [tool for tool, definition in zip(tools or (), every, strict=True) if definition.name in names]
    return ToolUse(choice, is_parallel is not False, shown or None, rename)
