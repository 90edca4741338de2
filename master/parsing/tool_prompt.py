"""Tells a model of its tools whose chat template does not."""

import json
from collections.abc import Mapping, Sequence

from master.parsing.call_format import CallFormat

INTRODUCTION = "You can call these functions, each given as a JSON object:"
HOW_TO_CALL = "To call a function, answer with its name and its arguments, in this form:"

Message = dict[str, object]


def with_tools(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]],
    call_format: CallFormat,
    *,
    takes_system: bool,
) -> list[Message]:
    """The messages with one more for the system, first; or within the first, where templates have no place for one."""
    lines = [INTRODUCTION, *(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)]
    if call_format.example:
        lines += [HOW_TO_CALL, call_format.example]
    text = "\n".join(lines)
    if takes_system or not messages:
        return [{"role": "system", "content": text}, *map(dict, messages)]
    first, *others = messages
    match first.get("content"):
        case list() as parts:
            content: object = [{"type": "text", "text": f"{text}\n\n"}, *parts]
        case said:
            content = f"{text}\n\n{said or ''}"
    return [{**first, "content": content}, *map(dict, others)]
