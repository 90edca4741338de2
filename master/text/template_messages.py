"""Makes chat messages what a template gets: plain JSON, in the forms its author expected."""

import itertools
import json
from collections.abc import Mapping, Sequence

from master.text.content_form import ContentForm
from master.text.message_form import ArgumentsForm, MessageForm

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def template_messages(messages: Sequence[Mapping[str, object]], form: MessageForm) -> list[dict[str, object]]:
    """Copies of the messages, with

    * fields that are null left out, and reasoning under every name templates know (as transformers does);
    * the arguments of tool calls in the form that the template reads, and so the content beside calls;
    * text parts joined by line ends where the template expects a string;
    * one system message at the beginning, if there are several.

    Raises ValueError naming the message that holds something else than text.
    """
    return _with_one_system([_message(index, message, form) for index, message in enumerate(messages)])


def plain(value: object) -> object:
    """A copy of JSON data, free of anything a template could call. Raises ValueError for other data."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [plain(item) for item in value]
    raise ValueError(f"a chat template gets JSON data only, not {type(value).__name__}")


def _with_one_system(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Templates take one system message, first, and refuse or forget others."""
    systems = list(itertools.takewhile(lambda message: message.get("role") == "system", messages))
    if len(systems) < 2:
        return messages
    contents = [message.get("content") for message in systems]
    if all(isinstance(content, str) for content in contents):
        content: object = "\n\n".join(content for content in contents if isinstance(content, str) and content)
    else:
        content = [part for parts in contents for part in (parts if isinstance(parts, list) else [text_part(parts)])]
    return [{"role": "system", "content": content}, *messages[len(systems) :]]


def text_part(text: object) -> dict[str, object]:
    return {"type": "text", "text": text}


def _message(index: int, message: Mapping[str, object], form: MessageForm) -> dict[str, object]:
    fields: dict[str, object] = {key: plain(value) for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING_FIELDS if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    content = fields.get("content")
    if isinstance(content, list):
        texts = [_part_text(f"messages[{index}].content[{number}]", part) for number, part in enumerate(content)]
        is_text = form.content is ContentForm.STRING
        fields["content"] = "\n".join(texts) if is_text else [text_part(text) for text in texts]
    calls = fields.get("tool_calls")
    if isinstance(calls, list) and calls:
        if not fields.get("content"):
            fields["content"] = None if form.has_null_content else ""
        for call in calls:
            _form_arguments(call, form.arguments)
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


def _form_arguments(call: object, form: ArgumentsForm) -> None:
    match call:
        case {"function": {"arguments": str(arguments)} as function}:
            try:
                parsed = json.loads(arguments) if arguments.strip() else {}
            except ValueError:
                return  # what a model wrote by mistake is shown to it as it was
            if isinstance(parsed, dict):
                function["arguments"] = parsed if form is ArgumentsForm.OBJECT else arguments.strip() or "{}"
        case {"function": {"arguments": dict(arguments)} as function} if form is ArgumentsForm.TEXT:
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
