"""Chat messages as a template gets them: plain JSON, in the forms its author expected."""

import json
from collections.abc import Mapping, Sequence

from master.text.content_form import ContentForm

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def template_messages(messages: Sequence[Mapping[str, object]], form: ContentForm) -> list[dict[str, object]]:
    """Copies of the messages, with

    * fields that are null left out, and reasoning under every name templates know (as transformers does);
    * the arguments of tool calls parsed, where they are a JSON object in a string (as vLLM does);
    * text parts joined by line ends where the template expects a string.

    Raises ValueError naming the message that holds something else than text.
    """
    return [_message(index, message, form) for index, message in enumerate(messages)]


def plain(value: object) -> object:
    """A copy of JSON data, free of anything a template could call. Raises ValueError for other data."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [plain(item) for item in value]
    raise ValueError(f"a chat template gets JSON data only, not {type(value).__name__}")


def _message(index: int, message: Mapping[str, object], form: ContentForm) -> dict[str, object]:
    fields: dict[str, object] = {key: plain(value) for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING_FIELDS if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    content = fields.get("content")
    if isinstance(content, list):
        texts = [_part_text(f"messages[{index}].content[{number}]", part) for number, part in enumerate(content)]
        if form is ContentForm.STRING:
            fields["content"] = "\n".join(texts)
        else:
            fields["content"] = [{"type": "text", "text": text} for text in texts]
    calls = fields.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _parse_arguments(call)
    return fields


def _part_text(where: str, part: object) -> str:
    match part:
        case str():
            return part
        case {"type": str(kind), **fields} if kind in _TEXT_PARTS:
            text = fields.get("refusal" if kind == "refusal" else "text")
            if isinstance(text, str):
                return text
            raise ValueError(f"{where} has no text")
        case {"type": str(kind)}:
            raise ValueError(f"{where}: content of type {kind!r} is not supported, only text")
    raise ValueError(f"{where} is not a content part")


def _parse_arguments(call: object) -> None:
    match call:
        case {"function": {"arguments": str(arguments)} as function}:
            try:
                parsed = json.loads(arguments) if arguments.strip() else {}
            except ValueError:
                return  # what a model wrote by mistake is shown to it as it was
            if isinstance(parsed, dict):
                function["arguments"] = parsed
