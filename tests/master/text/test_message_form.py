"""T2, T3: templates get messages in the form they read, found out by trying."""

import json

import pytest

from master.text.chat_template import ChatTemplate

# as DeepSeek R1's and V3.1's: arguments are put together with text, and calls show only beside null
TEXT_AND_NULL = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for call in m.tool_calls %}<call>{{ call.function.name }}\n{{ '' + call.function.arguments }}{% endfor %}"
    "{% elif m.content is none %}{{ raise_exception('no content') }}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}"
    "{% endfor %}"
)
TEXT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}"
)
OBJECT = TEXT.replace("call.function.arguments", "(call.function.arguments | tojson)")
EITHER = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}{% endfor %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)
ARGUMENTS: list[object] = ['{"city": "Zürich"}', {"city": "Zürich"}]


@pytest.mark.parametrize("source", [TEXT_AND_NULL, TEXT, OBJECT, EITHER])
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=["text", "object"])
@pytest.mark.parametrize("content", [None, ""])
def test_calls_are_rendered_whatever_form_they_came_in(source: str, arguments: object, content: str | None) -> None:
    """T2"""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    answer: dict[str, object] = {"role": "assistant", "content": content, "tool_calls": [call]}
    history: list[dict[str, object]] = [{"role": "user", "content": "?"}, answer]
    rendered = ChatTemplate({"default": source}, {}).render(history)
    assert "weather" in rendered and '{"city": "Zürich"}' in rendered and "None" not in rendered


@pytest.mark.parametrize("source", [TEXT_AND_NULL, OBJECT])
def test_arguments_that_are_none_are_an_empty_object(source: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": ""}}
    rendered = ChatTemplate({"default": source}, {}).render(
        [{"role": "assistant", "content": None, "tool_calls": [call]}]
    )
    assert "{}" in rendered


def test_leading_system_messages_become_one() -> None:
    """T3"""
    template = ChatTemplate({"default": "{{ messages | tojson }}"}, {})
    system = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]
    user = {"role": "user", "content": "c"}
    assert json.loads(template.render([*system, user])) == [{"role": "system", "content": "a\n\nb"}, user]
    later = [system[0], user, system[1]]
    assert json.loads(template.render(later)) == later


def test_a_template_without_a_place_for_a_system_message_is_known() -> None:
    assert not ChatTemplate({"default": NO_SYSTEM}, {}).takes_system
    assert ChatTemplate({"default": OBJECT}, {}).takes_system
    assert not ChatTemplate({"default": OBJECT}, {}).shows_tools
    assert ChatTemplate({"default": "{% if tools %}{{ tools }}{% endif %}"}, {}).shows_tools
