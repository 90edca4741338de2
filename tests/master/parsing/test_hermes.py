import pytest

from master.parsing.hermes import HERMES
from tests.master.parsing.answers import Answer, Call, new_parser, read


def answer(text: str) -> Answer:
    return read(new_parser(HERMES), text)


def test_text_around_and_between_calls_is_content() -> None:
    parsed = answer(
        'First.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\nThen.\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\nLast.\n'
    )
    assert parsed.content == "First.\nThen.\nLast.\n"
    assert parsed.calls == [Call("f", '{"a": 1}'), Call("g", "{}")]
    assert parsed.ids == ["id-0", "id-1"]
    assert parsed.order == ["content", "call 0", "content", "call 1", "content"]


def test_whitespace_around_calls_is_layout() -> None:
    parsed = answer(
        '\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g","arguments":{}}</tool_call>\n'
    )
    assert parsed.content == ""
    assert [call.name for call in parsed.calls] == ["f", "g"]


def test_arguments_stream_once_the_name_is_known() -> None:
    parser = new_parser(HERMES)
    assert read(parser, '<tool_call>{"name": "f", "argum').calls == []
    parser = new_parser(HERMES)
    parser.feed('<tool_call>{"name": "f", "arguments": ')
    first = parser.feed('{"city": "Par')
    assert [str(event) for event in first] == [
        "ToolCallStart(index=0, id='id-0', name='f')",
        'ToolCallArguments(index=0, text=\'{"city": "Par\')',
    ]
    assert [str(event) for event in parser.feed("is")] == ["ToolCallArguments(index=0, text='is')"]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"name": "f", "arguments": {"a": {"b": [1, {"c": 2}]}, "d": "}]"}', '{"a": {"b": [1, {"c": 2}]}, "d": "}]"}'),
        ('"arguments": {"name": "x"}, "name": "f"', '{"name": "x"}'),
        ('"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"', '{"a": "é"}'),
        ('"arguments": "{}", "name": "f"', "{}"),
        ('"name": "f", "arguments": null', "{}"),
        ('"name": "f"', "{}"),
        ('"type": "function", "x": [{"name": "no"}, "}"], "y": -1.5e3, "name": "f", "arguments": {}', "{}"),
        ('"name": "f", "arguments": {}, "arguments": {"a": 1}, "name": "g"', "{}"),
        ('"name": "\\u0066", "arguments": { "a" :\n1 }', '{ "a" :\n1 }'),
        (
            '"name": "f", "arguments": {"a": "</tool_call><tool_call>\\"\\\\"}',
            '{"a": "</tool_call><tool_call>\\"\\\\"}',
        ),
        ('"name": "f", "arguments": {"a": True, "b": [1, 2,],}', '{"a": true, "b": [1, 2]}'),
    ],
)
def test_arguments_are_as_the_model_wrote_them(written: str, arguments: str) -> None:
    assert answer(f"<tool_call>{{{written}}}</tool_call>") == Answer(
        calls=[Call("f", arguments)], ids=["id-0"], order=["call 0"]
    )


@pytest.mark.parametrize(
    "written",
    [
        "not JSON",
        "",
        "[1]",
        "{}",
        '{"name": "", "arguments": {}}',
        '{"name": 7, "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": null, "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": }',
        '{"name": "f", "arguments": "Paris"}',
        '{"name": "f", "arguments": "[1]"}',
        '{"name": "f", "arguments": "' + '{\\"a\\":' * 10_000 + "1" + "}" * 10_000 + '"}',
        "{'name': 'f', 'arguments': {}}",
        '{"name" "f"}',
        "\ud800",
    ],
)
def test_what_is_no_call_is_content_as_written(written: str) -> None:
    text = f"Well:\n<tool_call>\n{written}\n</tool_call> so."
    assert answer(text) == Answer(content=text, order=["content"])


def test_a_call_after_one_that_is_broken_is_read() -> None:
    parsed = answer('<tool_call>oops</tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert parsed.content == "<tool_call>oops</tool_call>"
    assert parsed.calls == [Call("f", "{}")]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("I check.\n<tool_call>", "I check."),
        ("I check.\n<tool_call>\n ", "I check."),
        ("I check.\n<tool_", "I check.\n<tool_"),
        ('I check.\n<tool_call>\n{"name": "f', 'I check.\n<tool_call>\n{"name": "f'),
        ('<tool_call>{"name": "f", "arguments"', '<tool_call>{"name": "f", "arguments"'),
        ('<tool_call>{"arguments": {"a": 1}, "na', '<tool_call>{"arguments": {"a": 1}, "na'),
        ("Just text \n", "Just text \n"),
        (" \n ", " \n "),
    ],
)
def test_a_call_cut_off_before_its_arguments_is_content_and_a_bare_tag_nothing(text: str, content: str) -> None:
    assert answer(text) == Answer(content=content, order=["content"])


def test_a_call_cut_off_in_its_arguments_stays_a_call() -> None:
    parsed = answer('<tool_call>{"name": "f", "arguments": {"city": "San Fr')
    assert parsed.calls == [Call("f", '{"city": "San Fr')]
    assert parsed.content == ""


@pytest.mark.parametrize("end", ["", "\n", "}", "}}\n", "\n</tool_ca"])
def test_a_slip_after_the_arguments_does_not_show(end: str) -> None:
    parsed = answer('<tool_call>{"name": "f", "arguments": {"a": 1}}' + end)
    assert parsed == Answer(calls=[Call("f", '{"a": 1}')], ids=["id-0"], order=["call 0"])


def test_arguments_whose_brackets_are_not_closed_end_at_the_tag() -> None:
    parsed = answer('<tool_call>{"name": "f", "arguments": {"a": [1</tool_call> Done.')
    assert parsed.calls == [Call("f", '{"a": [1')]
    assert parsed.content == " Done."


def test_a_call_without_closing_tag_ends_at_the_next() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}\n'
    assert answer(call * 3).calls == [Call("f", "{}")] * 3
    assert answer(call * 3).content == ""
