import re

import pytest

from master.parsing.mistral import MISTRAL
from tests.master.parsing.answers import Answer, Call, new_parser, read


def answer(text: str) -> Answer:
    return read(new_parser(MISTRAL), text)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[ARGS]{}',
        '[TOOL_CALLS]f{"a": "[TOOL_CALLS]"}\n[TOOL_CALLS] g[ARGS] {}\n',
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "[TOOL_CALLS]"}}, {"arguments": {}, "name": "g"}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "[TOOL_CALLS]"}},\n{"name": "g"}',
    ],
)
def test_both_forms_are_read(text: str) -> None:
    parsed = answer(text)
    assert parsed.calls == [Call("f", '{"a": "[TOOL_CALLS]"}'), Call("g", "{}")]
    assert parsed.content == ""


def test_ids_of_the_model_are_kept() -> None:
    assert answer("[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}").ids == ["123456789"]
    assert answer('[TOOL_CALLS][{"id": "abc", "name": "f", "arguments": {}}]').ids == ["abc"]


def test_new_ids_are_what_the_templates_accept() -> None:
    assert re.fullmatch("[A-Za-z0-9]{9}", MISTRAL.new_id())


def test_text_around_calls_is_content() -> None:
    parsed = answer('Hello. [TOOL_CALLS][{"name": "f", "arguments": {}}]\nBye [TOOL_CALLS]g[ARGS]{} now')
    assert parsed.content == "Hello.\nBye now"
    assert parsed.order == ["content", "call 0", "content", "call 1", "content"]


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS] not json at all",
        "Hi [TOOL_CALLS] {}",
        "[TOOL_CALLS]f[ARG]{}",
        "[TOOL_CALLS]f[ARGS]x",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[ARGS",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[CALL_ID]1[CALL_ID]2[ARGS]{}",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]",
        '[TOOL_CALLS][{"name": "f", "arguments": 1}]',
        '[TOOL_CALLS][{"name": "f", "argum',
        "[TOOL_CALLS]get_wea",
        "An [ARGS] and [TOOL",
    ],
)
def test_what_is_no_call_is_content_as_written(text: str) -> None:
    assert answer(text) == Answer(content=text, order=["content"])


def test_a_tag_that_ends_the_output_is_dropped() -> None:
    assert answer("Let me check.\n[TOOL_CALLS] ").content == "Let me check."
    assert answer("Let me check.\n[TOOL_CALLS] [").content == "Let me check."


def test_arguments_cut_off_stay_a_call() -> None:
    assert answer('[TOOL_CALLS]f[ARGS]{"path": "/tmp').calls == [Call("f", '{"path": "/tmp')]
