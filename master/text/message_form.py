"""Finds out which forms of messages a chat template reads, by rendering a few."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from master.text.content_form import ContentForm

NAME, KEY = "probed_name", "probed_key"
SYSTEM = "probed system"
CALL_ID = "call00000"  # as Mistral's templates want them


class ArgumentsForm(Enum):
    OBJECT = "object"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """`has_null_content`: a message of calls only must say that its content is null, or its calls are left out.

    `takes_system`: the template has a place for a system message.
    """

    content: ContentForm
    arguments: ArgumentsForm = ArgumentsForm.OBJECT
    has_null_content: bool = False
    takes_system: bool = True


# Text of these messages, or None where the template fails.
Render = Callable[[Sequence[dict[str, object]]], str | None]


def message_form(render: Render, content: ContentForm) -> MessageForm:
    """The first form in which a call is rendered as it should be; the usual one if there is none."""
    user = {"role": "user", "content": _content("Hello", content)}
    takes_system = SYSTEM in (render([{"role": "system", "content": _content(SYSTEM, content)}, user]) or "")
    for has_null_content in (False, True):
        for arguments in ArgumentsForm:
            call = _call(arguments, None if has_null_content else "")
            if _shows_call(render([user, call]) or ""):
                return MessageForm(content, arguments, has_null_content, takes_system)
    return MessageForm(content, takes_system=takes_system)


def _content(text: str, form: ContentForm) -> object:
    return text if form is ContentForm.STRING else [{"type": "text", "text": text}]


def _call(form: ArgumentsForm, content: str | None) -> dict[str, object]:
    arguments: object = {KEY: 1} if form is ArgumentsForm.OBJECT else f'{{"{KEY}": 1}}'
    function = {"name": NAME, "arguments": arguments}
    call = {"id": CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _shows_call(text: str) -> bool:
    """Neither as Python writes an object, nor as JSON writes a text that holds one."""
    return NAME in text and KEY in text and f"'{KEY}'" not in text and f'\\"{KEY}' not in text
