"""However text is cut into pieces, a client puts together the same answer, and nothing of it is lost or doubled."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.parsing.call_format import CallFormat
from master.parsing.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from master.parsing.glm45 import GLM45, GLM47
from master.parsing.harmony import HARMONY
from master.parsing.hermes import HERMES
from master.parsing.kimi_k2 import KIMI_K2
from master.parsing.llama3_json import LLAMA3_JSON
from master.parsing.mistral import MISTRAL, MISTRAL_ARRAY
from master.parsing.output_parser import ReasoningThenCalls, TextParser
from master.parsing.plain import PlainParser
from master.parsing.pythonic import PYTHONIC
from master.parsing.qwen3_xml import QWEN3_XML
from master.parsing.reasoning import MISTRAL_THINK, THINK, ReasoningParser
from tests.master.parsing import written
from tests.master.parsing.answers import Call, cut, new_parser, read
from tests.master.parsing.written import Written

# those whose arguments are JSON
FORMATS: dict[str, tuple[CallFormat, Written]] = {
    "hermes": (HERMES, written.hermes),
    "llama3_json": (LLAMA3_JSON, written.llama3_json),
    "mistral": (MISTRAL, written.mistral),
    "mistral_array": (MISTRAL_ARRAY, written.mistral_array),
    "deepseek_v3": (DEEPSEEK_V3, written.deepseek_v3),
    "deepseek_v31": (DEEPSEEK_V31, written.deepseek_v31),
    "kimi_k2": (KIMI_K2, written.kimi_k2),
    "harmony": (HARMONY, written.harmony),
}
# those that write each argument by itself
PLAIN_FORMATS: dict[str, tuple[CallFormat, Written]] = {
    "qwen3_xml": (QWEN3_XML, written.qwen3_xml),
    "glm45": (GLM45, written.glm45),
    "glm47": (GLM47, written.glm47),
    "pythonic": (PYTHONIC, written.pythonic),
}
NO_TEXT_BEFORE = ("llama3_json", "harmony", "pythonic")

PARSERS: dict[str, Callable[[], TextParser]] = {
    "none": PlainParser,
    "hermes": lambda: new_parser(HERMES),
    "llama3_json": lambda: new_parser(LLAMA3_JSON),
    "mistral": lambda: new_parser(MISTRAL),
    "deepseek": lambda: new_parser(DEEPSEEK_V3),
    "kimi_k2": lambda: new_parser(KIMI_K2),
    "harmony": lambda: new_parser(HARMONY),
    "qwen3_xml": lambda: new_parser(QWEN3_XML),
    "glm45": lambda: new_parser(GLM45),
    "pythonic": lambda: new_parser(PYTHONIC),
    "think": lambda: ReasoningParser(THINK, is_open=False),
    "open think": lambda: ReasoningParser(THINK, is_open=True),
    "think, then hermes": lambda: ReasoningThenCalls(ReasoningParser(THINK, is_open=True), new_parser(HERMES)),
    "think, then mistral": lambda: ReasoningThenCalls(
        ReasoningParser(MISTRAL_THINK, is_open=False), new_parser(MISTRAL)
    ),
}

# what makes and breaks calls, so that a few of them in a row reach every state
SNIPPETS = st.one_of(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<think>", "</think>", "[THINK]", "[/THINK]", "<|python_tag|>", "[TOOL_CALLS]"]
    ),
    st.sampled_from(
        ["[ARGS]", "[CALL_ID]", "{", "}", "[", "]", '"', "\\", ",", ":", ";", "<", "\n", " ", "null", "1", "f", "é🙂"]
    ),
    st.sampled_from([written.DEEPSEEK_SECTION[0], *written.DEEPSEEK_CALL, "f\n```json\n", "functions.f:0"]),
    st.sampled_from(
        ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
    ),
    st.sampled_from(
        ["<|channel|>analysis", "<|channel|>final", "to=functions.f", "<|message|>", "<|end|>", "<|start|>assistant"]
    ),
    st.sampled_from(["<function=f>", "<parameter=a>", "</parameter>", "</function>", "f(", "a=", ")", "'", "True"]),
    st.sampled_from(["<arg_key>a</arg_key>", "<arg_value>", "</arg_value>", "<|python_start|>", "[f(a='x', "]),
    st.sampled_from(
        ['{"name": "f", ', '"arguments": ', '"parameters": {"a": ', '"name": "g"', '"{\\"a\\": 1}"', '"id": "x"']
    ),
    st.sampled_from(
        ['{"name": "f", "arguments": {"a": [1]}}', '<tool_call>{"name": "f", "arguments": {"a"', "f[ARGS]{}"]
    ),
)
HOSTILE = st.lists(SNIPPETS | st.text(max_size=3), max_size=12).map("".join)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(HOSTILE, JSON, max_size=3).flatmap(
    lambda value: st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)])
)
CALLS = st.lists(st.builds(Call, st.sampled_from(["f", "get_weather", "a-b.c"]), ARGUMENTS), min_size=1, max_size=3)
# what plain text can say without a schema: a string that looks like a number would be one
PLAIN_VALUES: st.SearchStrategy[object] = st.sampled_from(
    [1, -2.5, True, None, [1, {"a": "x"}], {"b": []}, "Zürich", "two\nlines", "é🙂 <b>", ""]
)
PLAIN_CALLS = st.lists(
    st.builds(
        Call,
        st.sampled_from(["f", "get_weather"]),
        st.dictionaries(st.sampled_from(["a", "b_1", "city"]), PLAIN_VALUES, max_size=3).map(json.dumps),
    ),
    min_size=1,
    max_size=3,
)
# begins and ends with a letter, and has nothing of a tag or an object in it
PROSE = st.from_regex(r"[a-z]([a-zé, .\n]*[a-z])?", fullmatch=True)


@pytest.mark.parametrize("name", PARSERS)
@given(text=HOSTILE, lengths=LENGTHS)
@settings(max_examples=150, deadline=None)
def test_pieces_add_up_to_the_whole(name: str, text: str, lengths: list[int]) -> None:
    whole = read(PARSERS[name](), text)
    assert read(PARSERS[name](), *text) == whole
    assert read(PARSERS[name](), *cut(text, lengths)) == whole


@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, before=st.just("") | PROSE, lengths=LENGTHS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_calls_are_read_back_whole_or_cut_off(
    name: str, calls: list[Call], before: str, lengths: list[int], data: st.DataObject
) -> None:
    call_format, write = FORMATS[name]
    before = "" if name in NO_TEXT_BEFORE else before
    text = before + write(calls)
    whole = read(new_parser(call_format), *cut(text, lengths))
    assert whole.calls == calls
    assert whole.content == before
    shown = text[: data.draw(st.integers(0, len(text)))]
    partial = read(new_parser(call_format), *cut(shown, lengths))
    assert partial == read(new_parser(call_format), shown)
    assert [call.name for call in partial.calls] == [call.name for call in calls[: len(partial.calls)]]
    for had, call in zip(partial.calls, calls, strict=False):
        assert call.arguments.startswith(had.arguments)
    assert all(had == call for had, call in zip(partial.calls[:-1], calls, strict=False))


@pytest.mark.parametrize("name", PLAIN_FORMATS)
@given(calls=PLAIN_CALLS, before=st.just("") | PROSE, lengths=LENGTHS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_plain_arguments_become_json_whole_or_cut_off(
    name: str, calls: list[Call], before: str, lengths: list[int], data: st.DataObject
) -> None:
    call_format, write = PLAIN_FORMATS[name]
    before = "" if name in NO_TEXT_BEFORE else before
    text = before + write(calls)
    whole = read(new_parser(call_format), *cut(text, lengths))
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert whole.content == before
    shown = text[: data.draw(st.integers(0, len(text)))]
    partial = read(new_parser(call_format), *cut(shown, lengths))
    assert partial == read(new_parser(call_format), shown)
    for had, call in zip(partial.calls, whole.calls, strict=False):
        assert call.arguments.startswith(had.arguments)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
@given(text=HOSTILE)
@settings(max_examples=150, deadline=None)
def test_what_is_given_out_is_in_the_text_in_that_order(name: str, text: str) -> None:
    """Without calls the content is the text, but for a tag at its end; with calls, only layout is missing."""
    answer = read(PARSERS[name](), text)
    if not answer.calls:
        assert text.startswith(answer.content)
        bare = text[len(answer.content) :].strip().removesuffix("[").strip()
        assert bare in ("", "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
        assert bare or answer.content == text
    assert is_subsequence(answer.content, text)


@given(before=PROSE, after=PROSE, call=CALLS)
@settings(max_examples=50, deadline=None)
def test_text_around_a_call_is_kept(before: str, after: str, call: list[Call]) -> None:
    answer = read(new_parser(HERMES), before + "\n" + written.hermes(call) + "\n" + after)
    assert answer.content == before + "\n" + after
    assert answer.calls == call


def test_long_outputs_take_time_in_proportion() -> None:
    """A parser that read its buffer again with each piece would not come to an end here."""
    long = "x" * 300_000
    assert (
        len(read(new_parser(HERMES), '<tool_call>{"name": "f", "arguments": {"a": "', *long).calls[0].arguments)
        > 300_000
    )
    hidden = read(new_parser(HERMES), '<tool_call>{"arguments": {"a": "', *long, '"}, "name": "f"}')
    assert len(hidden.calls[0].arguments) > 300_000
    assert len(read(new_parser(LLAMA3_JSON), '{"answer": "', *long).content) > 300_000
    assert len(read(new_parser(MISTRAL), "[TOOL_CALLS]", *long).content) > 300_000
    assert read(ReasoningParser(THINK, is_open=True), *long).reasoning == long


def is_subsequence(part: str, text: str) -> bool:
    characters = iter(text)
    return all(character in characters for character in part)
