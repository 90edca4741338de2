"""Writes calls whose arguments are one JSON object, in any frame."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from master.parsing.grammar_writer import GrammarWriter
from master.parsing.tool_definitions import ToolDefinition


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """begin, call, (between, call)*, end.

    A call is before_name, name, before_arguments, arguments, after_arguments.
    `between` is None where there can be only one call.
    """

    begin: str = ""
    before_name: str = ""
    is_name_quoted: bool = False
    before_arguments: str = ""
    after_arguments: str = ""
    between: str | None = ""
    end: str = ""

    def write(self, writer: GrammarWriter, tools: Sequence[ToolDefinition], is_many: bool) -> str:
        call = writer.one_of(self._call(writer, tool) for tool in tools)
        if is_many and self.between is not None:
            call = writer.one_or_more(call, writer.text(self.between))
        return f"{writer.text(self.begin)} {call} {writer.text(self.end)}"

    def _call(self, writer: GrammarWriter, tool: ToolDefinition) -> str:
        name = json.dumps(tool.name) if self.is_name_quoted else tool.name
        opening = writer.text(self.before_name + name + self.before_arguments)
        return f"{opening} {writer.json(tool.parameters)} {writer.text(self.after_arguments)}"
