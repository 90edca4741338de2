"""Anthropic's messages, made of blocks, as chat messages."""

from collections.abc import Sequence

import msgspec

from master.edge.fields.nesting import check_nesting
from master.errors import invalid

ROLES = ("user", "assistant", "system")

Message = dict[str, object]


class ContentBlock(msgspec.Struct, frozen=True):
    """A block of any type; the type says which fields it needs."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    tool_use_id: str | None = None
    content: "str | list[ContentBlock] | None" = None


Content = str | list[ContentBlock]


class InputMessage(msgspec.Struct, frozen=True):
    role: str
    content: Content


def chat_messages(messages: Sequence[InputMessage]) -> list[Message]:
    """Raises ServingError naming the block that is wrong."""
    chat: list[Message] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role not in ROLES:
            shown = f"{where}.role is {message.role[:100]!r}"
            raise invalid(f"{where}.role", f"{shown}; it must be user or assistant")
        content = message.content
        blocks = [ContentBlock("text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            chat.append(_assistant(f"{where}.content", blocks))
        else:
            chat += _others(f"{where}.content", message.role, blocks)
    return chat


def text_of(where: str, content: Content | None) -> str:
    """Joins blocks that may only be text. Raises ServingError naming another one."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text(f"{where}[{index}]", block) for index, block in enumerate(content))


def _assistant(where: str, blocks: Sequence[ContentBlock]) -> Message:
    """What the model wrote in one turn: thinking, text and calls."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for index, block in enumerate(blocks):
        at = f"{where}[{index}]"
        match block.type:
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                pass  # not ours, and nobody can read it
            case "tool_use":
                calls.append(_call(at, block))
            case _:
                texts.append(_text(at, block))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _others(where: str, role: str, blocks: Sequence[ContentBlock]) -> list[Message]:
    """Each result of a tool is a message, and so are all texts after one another."""
    messages: list[Message] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts:
            messages.append({"role": role, "content": "\n".join(texts)})
            texts.clear()

    for index, block in enumerate(blocks):
        at = f"{where}[{index}]"
        if block.type != "tool_result":
            texts.append(_text(at, block))
            continue
        end_text()
        if not block.tool_use_id:
            raise invalid(f"{at}.tool_use_id", f"{at}.tool_use_id is missing")
        result = text_of(f"{at}.content", block.content)
        messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": result})
    end_text()
    if not messages:
        raise invalid(where, f"{where} is empty")
    return messages


def _call(where: str, block: ContentBlock) -> Message:
    if not block.id or not block.name:
        field = "name" if block.id else "id"
        raise invalid(f"{where}.{field}", f"{where}.{field} is missing")
    check_nesting(f"{where}.input", block.input)
    function = {"name": block.name, "arguments": block.input or {}}
    return {"id": block.id, "type": "function", "function": function}


def _text(where: str, block: ContentBlock) -> str:
    if block.type != "text":
        raise invalid(where, f"{where} is of type {block.type[:100]!r}; this model takes text only")
    if block.text is None:
        raise invalid(where, f"{where}.text is missing")
    return block.text
