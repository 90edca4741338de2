"""Reads and writes calls as DeepSeek's models write them: V3 and R1 with a fence of JSON, V3.1 without.

With <b> for their tokens, whose bars and spaces are no ASCII: <calls begin><call begin>function<sep>name, a line of
```json, the arguments, ```<call end><calls end>; or <call begin>name<sep>, the arguments, <call end>.
"""

import re
from dataclasses import replace

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import openai_call_id
from master.parsing.call_section import CallHead, CallSectionParser, SectionTags
from master.parsing.json_layout import JsonLayout


def _token(name: str) -> str:
    spaced = name.replace(" ", "\u2581")
    return f"<\uff5c{spaced}\uff5c>"


SEPARATOR = _token("tool sep")
FENCED = re.compile(rf"\s*function{re.escape(SEPARATOR)}\s*(?P<name>[\w.:/-]{{1,128}})\s*(?:```(?:json)?\s*)?")
BARE = re.compile(rf"\s*(?P<name>[\w.:/-]{{1,128}})\s*{re.escape(SEPARATOR)}\s*(?:```(?:json)?\s*)?")


def _read_head(text: str) -> CallHead | None:
    found = FENCED.fullmatch(text) or BARE.fullmatch(text)
    return None if found is None else CallHead(found["name"])


TAGS = SectionTags(
    begin=_token("tool calls begin"),
    call_begin=_token("tool call begin"),
    call_end=_token("tool call end"),
    end=_token("tool calls end"),
    read_head=_read_head,
    layout=" \t\r\n",
)

DEEPSEEK_V3 = CallFormat(
    name="deepseek",
    tags=(TAGS.begin, TAGS.call_begin, TAGS.call_end, TAGS.end, SEPARATOR),
    is_told_by=lambda template: TAGS.call_begin in template and "```json" in template,
    new_parser=lambda calls: CallSectionParser(calls, TAGS),
    new_id=openai_call_id,
    write=JsonLayout(
        begin=TAGS.begin,
        before_name=f"{TAGS.call_begin}function{SEPARATOR}",
        before_arguments="\n```json\n",
        after_arguments=f"\n```{TAGS.call_end}",
        between="\n",
        end=TAGS.end,
    ).write,
)
DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    is_told_by=lambda template: TAGS.call_begin in template and "```json" not in template,
    write=JsonLayout(
        begin=TAGS.begin,
        before_name=TAGS.call_begin,
        before_arguments=SEPARATOR,
        after_arguments=TAGS.call_end,
        end=TAGS.end,
    ).write,
)
