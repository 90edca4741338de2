"""However text is cut into pieces, a client puts together the same answer, and nothing of it is lost or doubled."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master.parsing.call_format import CallFormat
from master.parsing.composed import ComposedParser
from master.parsing.events import OutputParser
from master.parsing.hermes import HERMES
from master.parsing.llama3_json import LLAMA3_JSON
from master.parsing.mistral import MISTRAL, MISTRAL_ARRAY
from master.parsing.plain import PlainParser
from master.parsing.reasoning import MISTRAL_THINK, THINK, ReasoningParser
from tests.master.parsing.answers import Call, cut, new_parser, read

FORMATS = {"hermes": HERMES, "llama3_json": LLAMA3_JSON, "mistral": MISTRAL, "mistral_array": MISTRAL_ARRAY}

PARSERS: dict[str, Callable[[], OutputParser]] = {
    "none": PlainParser,
    "hermes": lambda: new_parser(HERMES),
    "llama3_json": lambda: new_parser(LLAMA3_JSON),
    "mistral": lambda: new_parser(MISTRAL),
    "think": lambda: ReasoningParser(THINK, is_open=False),
    "open think": lambda: ReasoningParser(THINK, is_open=True),
    "think, then hermes": lambda: ComposedParser(ReasoningParser(THINK, is_open=True), new_parser(HERMES)),
    "think, then mistral": lambda: ComposedParser(ReasoningParser(MISTRAL_THINK, is_open=False), new_parser(MISTRAL)),
}

# what makes and breaks calls, so that a few of them in a row reach every state
SNIPPETS = st.one_of(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<think>", "</think>", "[THINK]", "[/THINK]", "<|python_tag|>", "[TOOL_CALLS]"]
    ),
    st.sampled_from(
        ["[ARGS]", "[CALL_ID]", "{", "}", "[", "]", '"', "\\", ",", ":", ";", "<", "\n", " ", "null", "1", "f", "é🙂"]
    ),
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
# begins and ends with a letter, and has nothing of a tag or an object in it
PROSE = st.from_regex(r"[a-z]([a-zé, .\n]*[a-z])?", fullmatch=True)


def written(call_format: CallFormat, calls: list[Call]) -> str:
    layout = call_format.layout
    texts = []
    for call in calls:
        name = json.dumps(call.name) if layout.is_name_quoted else call.name
        texts.append("".join((*layout.before_name, name, *layout.before_arguments, call.arguments)))
        texts[-1] += "".join(layout.after_arguments)
    return "".join(layout.begin) + "".join(layout.between).join(texts) + "".join(layout.end)


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
    before = "" if name == "llama3_json" else before
    text = before + written(FORMATS[name], calls)
    whole = read(new_parser(FORMATS[name]), *cut(text, lengths))
    assert whole.calls == calls
    assert whole.content == before
    shown = text[: data.draw(st.integers(0, len(text)))]
    partial = read(new_parser(FORMATS[name]), *cut(shown, lengths))
    assert partial == read(new_parser(FORMATS[name]), shown)
    assert [call.name for call in partial.calls] == [call.name for call in calls[: len(partial.calls)]]
    for had, call in zip(partial.calls, calls, strict=False):
        assert call.arguments.startswith(had.arguments)
    assert all(had == call for had, call in zip(partial.calls[:-1], calls, strict=False))


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
    answer = read(new_parser(HERMES), before + "\n" + written(HERMES, call) + "\n" + after)
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
