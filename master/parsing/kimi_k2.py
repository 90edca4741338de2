"""Reads and writes calls as Kimi K2 writes them, in a section; a call's id holds its name and its number.

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
<|tool_calls_section_end|>
"""

import re
from collections.abc import Sequence

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import openai_call_id
from master.parsing.call_section import CallHead, CallSectionParser, SectionTags
from master.parsing.grammar_writer import GrammarWriter
from master.parsing.tool_definitions import ToolDefinition

ARGUMENTS = "<|tool_call_argument_begin|>"
HEAD = re.compile(rf"\s*(?P<id>(?:functions\.)?(?P<name>[\w.:/-]{{1,128}}?)(?::\d+)?)\s*{re.escape(ARGUMENTS)}\s*")


def _read_head(text: str) -> CallHead | None:
    found = HEAD.fullmatch(text)
    return None if found is None else CallHead(found["name"], found["id"] if ":" in found["id"] else None)


def _write(writer: GrammarWriter, tools: Sequence[ToolDefinition], is_many: bool) -> str:
    number = writer.rule("/[0-9]{1,3}/")
    call = writer.one_of(
        f"{writer.text(f'{TAGS.call_begin}functions.{tool.name}:')} {number} {writer.text(ARGUMENTS)} "
        f"{writer.json(tool.parameters)} {writer.text(TAGS.call_end)}"
        for tool in tools
    )
    calls = writer.one_or_more(call) if is_many else call
    return f"{writer.text(TAGS.begin)} {calls} {writer.text(TAGS.end)}"


TAGS = SectionTags(
    begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    read_head=_read_head,
)

KIMI_K2 = CallFormat(
    name="kimi_k2",
    tags=(TAGS.begin, TAGS.call_begin, TAGS.call_end, TAGS.end, ARGUMENTS),
    is_told_by=lambda template: TAGS.call_begin in template,
    new_parser=lambda calls: CallSectionParser(calls, TAGS),
    new_id=openai_call_id,
    write=_write,
)
