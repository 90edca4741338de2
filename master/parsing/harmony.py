"""Reads gpt-oss's harmony, where an output is messages, each with a head that says what it is.

https://cookbook.openai.com/articles/openai-harmony defines it:

<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>answer, or for a call
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>

Messages to tools that are not functions are the model's own affair and dropped. An output without a head is content.
"""

import re
from enum import Enum, auto

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries, openai_call_id
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments
from master.parsing.json_layout import JsonLayout
from master.parsing.json_text import JsonText
from master.parsing.reasoning import ReasoningTags
from master.parsing.tag_gate import TagGate

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HEAD_BEGINNINGS = (CHANNEL, START, MESSAGE, "to=")
RECIPIENT = re.compile(r"to=([^\s<]+)")
CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
HEAD_WORDS = re.compile(r"<\|start\|>assistant|<\|\w+\|>|to=\S+|\b(?:analysis|commentary|final|json|code)\b")
FUNCTIONS = "functions."


class _Place(Enum):
    OPENING = auto()
    IN_HEAD = auto()
    IN_REASONING = auto()
    IN_CONTENT = auto()
    IN_ARGUMENTS = auto()
    IN_OTHER = auto()  # what is to be dropped


ENDS = {
    _Place.IN_REASONING: (END, RETURN),
    _Place.IN_CONTENT: (END, RETURN),
    _Place.IN_OTHER: (END, CALL, RETURN, START),
}


class HarmonyParser(CallParser):
    """Reads reasoning, content and calls alike."""

    def __init__(self, calls: CallSeries) -> None:
        super().__init__(calls)
        self._place = _Place.OPENING
        self._gate = TagGate(MESSAGE, layout="")
        self._head = ""
        self._name = ""  # of a call whose arguments have not begun
        self._value = JsonText()

    @property
    def is_reasoning(self) -> bool:
        return self._place is _Place.IN_REASONING

    def _read(self, text: str, events: list[Event]) -> str:
        match self._place:
            case _Place.OPENING:
                return self._read_opening(text)
            case _Place.IN_HEAD:
                return self._read_head(text)
            case _Place.IN_ARGUMENTS:
                return self._read_arguments(text, events)
            case _:
                return self._read_body(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        held = self._gate.flush()
        if self._place in (_Place.OPENING, _Place.IN_HEAD):
            # a head without a message, in which a model may have answered nevertheless
            text = HEAD_WORDS.sub("", self._head + held).strip()
            events += [ContentDelta(text)] if text else []
        else:
            self._give_out(held, events)
        return events

    def _read_opening(self, text: str) -> str:
        self._head += text
        begun = self._head.lstrip()
        is_head = begun.startswith(HEAD_BEGINNINGS)
        if not is_head and any(beginning.startswith(begun) for beginning in HEAD_BEGINNINGS):
            return ""
        opening, self._head = self._head, ""
        if is_head:
            self._place = _Place.IN_HEAD
        else:
            self._enter(_Place.IN_CONTENT)
        return opening

    def _read_head(self, text: str) -> str:
        passed = self._gate.feed(text)
        self._head += passed.text
        if passed.tag is None:
            return ""
        recipient, channel = RECIPIENT.search(self._head), CHANNEL_NAME.search(self._head)
        if recipient is None:
            is_analysis = channel is not None and channel[1] == "analysis"
            self._enter(_Place.IN_REASONING if is_analysis else _Place.IN_CONTENT)
        elif recipient[1].startswith(FUNCTIONS):
            self._name = recipient[1].removeprefix(FUNCTIONS)
            self._value = JsonText()
            self._place = _Place.IN_ARGUMENTS
        else:
            self._enter(_Place.IN_OTHER)
        return passed.rest

    def _enter(self, place: _Place) -> None:
        self._gate = TagGate(*ENDS[place], layout="")
        self._place = place

    def _read_arguments(self, text: str, events: list[Event]) -> str:
        if self._name:
            text = text.lstrip()
            if not text:
                return ""
            if not text.startswith("{"):
                self._enter(_Place.IN_CONTENT)
                return text
            events.append(self._calls.start(self._name))
            self._name = ""
        passed: list[str] = []
        end = self._value.feed(text, 0, passed)
        if passed:
            events.append(ToolCallArguments(self._calls.count - 1, "".join(passed)))
        if end is None:
            return ""
        self._enter(_Place.IN_CONTENT if self._value.is_broken else _Place.IN_OTHER)
        return self._value.unpassed + text[end:]

    def _read_body(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        self._give_out(passed.text, events)
        if passed.tag is not None:
            self._head = ""
            self._gate = TagGate(MESSAGE, layout="")
            self._place = _Place.IN_HEAD
        return passed.rest

    def _give_out(self, text: str, events: list[Event]) -> None:
        if text and self._place is _Place.IN_REASONING:
            events.append(ReasoningDelta(text))
        elif text and self._place is _Place.IN_CONTENT:
            events.append(ContentDelta(text))


REASONING = ReasoningTags(
    "harmony",
    sign=f"{CHANNEL}analysis",
    open=f"{CHANNEL}analysis{MESSAGE}",
    close=END,
    before_answer=f"{START}assistant",
    answer_opening=f"{CHANNEL}final{MESSAGE}",
)
HARMONY = CallFormat(
    name="harmony",
    tags=(START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN),
    is_told_by=lambda template: CHANNEL in template and MESSAGE in template,
    new_parser=HarmonyParser,
    new_id=openai_call_id,
    # a call ends the output
    write=JsonLayout(
        before_name=f"{CHANNEL}commentary to={FUNCTIONS}",
        before_arguments=f" {CONSTRAIN}json{MESSAGE}",
        between=None,
    ).write,
    new_reader=HarmonyParser,
    reasoning=REASONING,
)
