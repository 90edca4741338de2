"""T4: a model's call arguments reach the client as JSON, streamed too."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.parsing.hermes import HERMES
from master.parsing.json_text import JsonText, whole_json
from tests.master.parsing.answers import Call, new_parser, read


@pytest.mark.parametrize(
    ("written", "mended"),
    [
        ('{"a": "x\ny\tz\x00"}', '{"a": "x\\ny\\tz\\u0000"}'),
        ('{"a": NaN, "b": -Infinity, "c": [Infinity]}', '{"a": null, "b": null, "c": [null]}'),
        ('{"a": True, "b": False, "c": None}', '{"a": true, "b": false, "c": null}'),
        ("{'a': 'it is \"so\"', 'b': 'don\\'t'}", '{"a": "it is \\"so\\"", "b": "don\'t"}'),
        ('{"a": [1, 2, ], }', '{"a": [1, 2 ] }'),
        ('{"a": "C:\\dir \\x41 \\u12 \\u00e9"}', '{"a": "C:\\\\dir \\u0041 \\\\u12 \\u00e9"}'),
        ('{ "a" :\n[ ] , "b":{}}', '{ "a" :\n[ ] , "b":{}}'),
    ],
)
def test_what_is_nearly_json_is_mended_however_it_is_cut(written: str, mended: str) -> None:
    assert whole_json(written) == mended
    json.loads(mended)
    assert "".join(passed_on(written, 1)) == mended
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert read(new_parser(HERMES), text).calls == [Call("f", mended)]
    assert read(new_parser(HERMES), *text).calls == [Call("f", mended)]


@pytest.mark.parametrize(
    "written", ["", "{", "{oops}", "{1: 2}", '{"a" 1}', '{"a": 1]', "[1 2]", "007", "{,}", '{"a": ,}']
)
def test_what_can_not_be_json_is_told(written: str) -> None:
    assert whole_json(written) is None


def test_what_can_not_be_json_is_content() -> None:
    text = '<tool_call>{"name": "f", "arguments": {oops}}</tool_call>'
    assert read(new_parser(HERMES), *text).content == text
    assert read(new_parser(HERMES), *text).calls == []


def test_where_given_arguments_stop_being_json_content_goes_on() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1, oops and more'
    for parsed in (read(new_parser(HERMES), text), read(new_parser(HERMES), *text)):
        assert parsed.calls == [Call("f", '{"a": 1')]
        assert parsed.content == ", oops and more"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
@settings(max_examples=150, deadline=None)
def test_json_is_passed_on_as_it_is(value: object) -> None:
    text = json.dumps({"value": value}, allow_nan=False) if not _has_infinity(value) else "{}"
    assert whole_json(text) == text
    assert "".join(passed_on(text, 3)) == text


def passed_on(text: str, length: int) -> list[str]:
    value, out = JsonText(), list[str]()
    for start in range(0, len(text), length):
        value.feed(text[start : start + length], 0, out)
    return out


def _has_infinity(value: object) -> bool:
    if isinstance(value, list):
        return any(_has_infinity(inner) for inner in value)
    return value in (float("inf"), float("-inf"))
