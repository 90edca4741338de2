"""The input of /v1/responses as chat messages.

Reasoning, text and calls are items of their own there; what the model wrote in one turn becomes one message.
"""

from collections.abc import Sequence

import msgspec

from master.errors import ServingError, invalid

MESSAGE_ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")

Message = dict[str, object]


class InputPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True):
    """An item of any type; the type says which fields it needs. Without a type it is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


def input_messages(items: Sequence[InputItem]) -> list[Message]:
    """Raises ServingError naming the item that is wrong."""
    messages: list[Message] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item.type:
            case "message":
                _add_message(messages, where, item)
            case "reasoning":
                if item.content:  # a summary is not what the model thought
                    messages.append({"role": "assistant", "content": "", "reasoning_content": _content(where, item)})
            case "function_call":
                _add_call(messages, where, item)
            case "function_call_output":
                output = _text(f"{where}.output", item.output)
                messages.append({"role": "tool", "tool_call_id": _needed(where, "call_id", item), "content": output})
            case "item_reference":
                raise invalid(where, f"{where} refers to an earlier item; nothing is stored here, send the item itself")
            case kind:
                raise invalid(f"{where}.type", f"{where}.type is {kind[:100]!r}; not supported here")
    return messages


def _add_message(messages: list[Message], where: str, item: InputItem) -> None:
    if item.role not in MESSAGE_ROLES:
        shown = "missing" if item.role is None else repr(item.role[:100])
        raise invalid(f"{where}.role", f"{where}.role is {shown}; it must be one of {', '.join(MESSAGE_ROLES)}")
    text = _content(where, item)
    last = messages[-1] if messages else {}
    if item.role == "assistant" and last.get("content") == "" and "tool_calls" not in last:
        last["content"] = text  # after its reasoning
    else:
        messages.append({"role": "system" if item.role == "developer" else item.role, "content": text})


def _add_call(messages: list[Message], where: str, item: InputItem) -> None:
    call: Message = {
        "id": _needed(where, "call_id", item),
        "type": "function",
        "function": {"name": _needed(where, "name", item), "arguments": item.arguments or "{}"},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _content(where: str, item: InputItem) -> str:
    return _text(f"{where}.content", item.content)


def _text(where: str, content: str | list[InputPart] | None) -> str:
    match content:
        case None:
            raise invalid(where, f"{where} is missing")
        case str():
            return content
        case _:
            return "\n".join(_part_text(f"{where}[{index}]", part) for index, part in enumerate(content))


def _part_text(where: str, part: InputPart) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type != "refusal" and part.type not in TEXT_PARTS:
        raise invalid(where, f"{where} is of type {part.type[:100]!r}; this model takes text only")
    if text is None:
        raise invalid(where, f"{where} has no text")
    return text


def _needed(where: str, field: str, item: InputItem) -> str:
    value = item.call_id if field == "call_id" else item.name
    if not value:
        raise _missing(where, field)
    return value


def _missing(where: str, field: str) -> ServingError:
    return invalid(f"{where}.{field}", f"{where}.{field} is missing")
