"""Reads and writes calls as Qwen3-Coder and its successors write them.

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>

The outer tag is missing at times, as is a closing one of a parameter.
"""

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import openai_call_id
from master.parsing.call_tags import CallTags
from master.parsing.tagged_calls import TaggedCallParser

TAGS = CallTags(
    open="<tool_call>",
    close="</tool_call>",
    before_name="<function=",
    after_name=(">",),
    before_key="<parameter=",
    after_key=">",
    before_value="",
    after_value="</parameter>",
    end="</function>",
    line="\n",
    has_own_lines=True,
)

QWEN3_XML = CallFormat(
    name="qwen3_xml",
    tags=(TAGS.open, TAGS.close),
    is_told_by=lambda template: TAGS.before_name in template,
    new_parser=lambda calls: TaggedCallParser(calls, TAGS),
    new_id=openai_call_id,
    write=TAGS.write,
)
