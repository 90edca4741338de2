"""Writes calls in tags, each argument between tags of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from master.parsing.grammar_writer import GrammarWriter
from master.parsing.tool_definitions import ToolDefinition
from master.parsing.typed_arguments import kinds_of, properties_of, resolved


@dataclass(frozen=True, slots=True)
class CallTags:
    """`before_name` is empty where the name follows `open` directly, `before_value` where the value follows the key.

    `line` is what stands between tags, and where values have lines of their own around those as well.
    """

    open: str
    close: str
    before_name: str
    after_name: tuple[str, ...]
    before_key: str
    after_key: str
    before_value: str
    after_value: str
    end: str
    line: str
    has_own_lines: bool

    def write(self, writer: GrammarWriter, tools: Sequence[ToolDefinition], is_many: bool) -> str:
        call = writer.one_of(self._call(writer, tool) for tool in tools)
        return writer.one_or_more(call, writer.text("\n")) if is_many else call

    def _call(self, writer: GrammarWriter, tool: ToolDefinition) -> str:
        name_end = self.after_name[0] + self.line if self.before_name else self.line
        before = self.open + (self.line + self.before_name if self.before_name else "") + tool.name + name_end
        parts = [writer.text(before)]
        for key, schema, is_required in properties_of(tool.parameters):
            argument = self._argument(writer, key, schema)
            parts.append(argument if is_required else f"({argument})?")
        return " ".join([*parts, writer.text((self.end + self.line if self.end else "") + self.close)])

    def _argument(self, writer: GrammarWriter, key: str, schema: Mapping[str, object]) -> str:
        line = self.line if self.has_own_lines else ""
        opening = self.before_key + key + self.after_key
        opening += self.line + self.before_value if self.before_value else line
        ending = line + self.after_value
        match resolved(schema, schema):
            case {"enum": list(values)} if all(isinstance(value, str) for value in values):
                value = f"({writer.one_of(writer.text(value + ending) for value in values)})"
            case _ if "string" in (kinds_of(schema, schema) or {"string"}):
                value = writer.text_until(ending)
            case _:
                value = f"{writer.json(schema)} {writer.text(ending)}"
        return f"{writer.text(opening)} {value} {writer.text(self.line)}"
