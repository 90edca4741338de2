import pytest

from master.parsing.hermes import HERMES
from master.parsing.output_parser import ReasoningThenCalls
from master.parsing.plain import PlainParser
from master.parsing.reasoning import MISTRAL_THINK, THINK, ReasoningParser
from tests.master.parsing.answers import Answer, Call, new_parser, read


def answer(text: str, *, is_open: bool = False) -> Answer:
    return read(ReasoningParser(THINK, is_open=is_open), text)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nWhy?\n\nSo.\n</think>\n\nYes.\n", "Why?\n\nSo.", "Yes.\n"),
        ("<think>r</think>c", "r", "c"),
        ("\n<think> r </think> c", " r ", " c"),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think></think>", "", ""),
        ("<think>r</think>\n\n", "r", ""),
        ("<think>cut off\n", "cut off", ""),
        ("<think>cut off\n</thi", "cut off\n</thi", ""),
        ("<think>a < b </ think></think>c <think>d</think>", "a < b </ think>", "c <think>d</think>"),
        ("Yes.</think> No.", "", "Yes.</think> No."),
        ("\nYes.", "", "\nYes."),
        ("<thin", "", "<thin"),
        ("", "", ""),
    ],
)
def test_reasoning_and_answer_come_apart(text: str, reasoning: str, content: str) -> None:
    parsed = answer(text)
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nWhy?\n</think>\n\nYes.", "Why?", "Yes."),
        ("Why?", "Why?", ""),
        ("\n", "", ""),
        ("<th", "<th", ""),
        ("\n<think>\nWhy?</think>Yes.", "Why?", "Yes."),
        ("</think>Yes.", "", "Yes."),
    ],
)
def test_reasoning_opened_by_the_prompt_needs_no_tag(text: str, reasoning: str, content: str) -> None:
    parsed = answer(text, is_open=True)
    assert (parsed.reasoning, parsed.content) == (reasoning, content)


def test_the_prompts_end_tells_whether_reasoning_is_open() -> None:
    assert THINK.are_open_after("<|im_start|>assistant\n<think>\n")
    assert not THINK.are_open_after("<think>\n\n</think>\n\n")
    assert not THINK.are_open_after("What does <think> mean?")
    assert not MISTRAL_THINK.are_open_after("<think>")


def test_tokens_of_the_reasoning_are_told_from_the_answers() -> None:
    parser = ReasoningThenCalls(ReasoningParser(THINK, is_open=True), PlainParser())
    flags = []
    for piece in ("Why", "?", "</think>", "\n\n", "Yes"):
        flags.append(parser.is_reasoning)
        parser.feed(piece)
    assert flags == [True, True, True, False, False]


def test_a_call_within_reasoning_is_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser = ReasoningThenCalls(ReasoningParser(THINK, is_open=False), new_parser(HERMES))
    parsed = read(parser, f"<think>Maybe {call}?</think>\n\n{call}")
    assert parsed.reasoning == f"Maybe {call}?"
    assert parsed.calls == [Call("f", "{}")]
    assert parsed.content == ""


def test_content_held_back_by_both_is_given_out_at_the_end() -> None:
    parser = ReasoningThenCalls(ReasoningParser(THINK, is_open=False), new_parser(HERMES))
    assert read(parser, "\n<t").content == "\n<t"
