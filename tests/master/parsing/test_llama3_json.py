import pytest

from master.parsing.llama3_json import LLAMA3_JSON
from tests.master.parsing.answers import Answer, Call, new_parser, read


def answer(text: str) -> Answer:
    return read(new_parser(LLAMA3_JSON), text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {"a": "{"}}',
        '\n {"name": "f", "arguments": {"a": "{"}}\n',
        '<|python_tag|>{"name": "f", "parameters": {"a": "{"}}',
        ' <|python_tag|>\n{"type": "function", "name": "f", "parameters": {"a": "{"}} ; ',
    ],
)
def test_an_output_that_is_an_object_or_has_the_tag_is_a_call(text: str) -> None:
    assert answer(text) == Answer(calls=[Call("f", '{"a": "{"}')], ids=["id-0"], order=["call 0"])


@pytest.mark.parametrize("separator", ["; ", ";", "\n", "", " ; \n", "<|python_tag|>"])
def test_several_calls_may_follow_each_other(separator: str) -> None:
    text = separator.join(f'{{"name": "f", "parameters": {{"n": {number}}}}}' for number in range(3))
    parsed = answer(text)
    assert parsed.calls == [Call("f", f'{{"n": {number}}}') for number in range(3)]
    assert parsed.content == ""


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": 1} is a dict',
        '{"parameters": {}}',
        '{"name": "Ada"}',
        '{"name": "Ada", "age": 36}',
        '{"name": "Ada", "parameters": "none"}',
        "{ not JSON",
        '  {"capital": "Paris"',
        'Answer: {"name": "f", "parameters": {}}',
        "<|python_tag|>print(1)",
        '<|python_tag|>{"a": 1}; x',
        "a < b; <|python_ta",
        " \n",
        ";",
    ],
)
def test_any_other_json_is_content(text: str) -> None:
    assert answer(text) == Answer(content=text, order=["content"])


def test_text_before_the_tag_and_after_a_call_is_content() -> None:
    parsed = answer('Let me see. <|python_tag|>{"name": "f"}; that is {"name": "g", "parameters": {}}')
    assert parsed.content == 'Let me see.; that is {"name": "g", "parameters": {}}'
    assert parsed.calls == [Call("f", "{}")]


def test_a_tag_that_ends_the_output_is_dropped() -> None:
    assert answer("Well. <|python_tag|>\n").content == "Well."
