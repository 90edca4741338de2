"""Reads and writes calls as GLM-4.5 and its successors do: with line ends between the tags (4.5, 4.6) or without.

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from dataclasses import replace

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import openai_call_id
from master.parsing.call_tags import CallTags
from master.parsing.tagged_calls import TaggedCallParser

TAGS = CallTags(
    open="<tool_call>",
    close="</tool_call>",
    before_name="",
    after_name=("\n", "<arg_key>", "</tool_call>"),
    before_key="<arg_key>",
    after_key="</arg_key>",
    before_value="<arg_value>",
    after_value="</arg_value>",
    end="",
    line="\n",
    has_own_lines=False,
)
COMPACT = replace(TAGS, line="")
SPECIAL = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

GLM45 = CallFormat(
    name="glm45",
    tags=SPECIAL,
    is_told_by=lambda template: "<arg_key>{" in template and "</arg_key>\\n" in template,
    new_parser=lambda calls: TaggedCallParser(calls, TAGS),
    new_id=openai_call_id,
    write=TAGS.write,
)
GLM47 = replace(GLM45, is_told_by=lambda template: "<arg_key>" in template, write=COMPACT.write)
