"""Reads calls in a section of their own, each with a head, its arguments as a JSON object, and a closing tag.

What follows a section's begin and is no call is content, together with the tags; once there was a call, text between
calls is noise and dropped. So is a section that ends, or is cut off, before anything is in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from master.parsing.call_ids import CallSeries
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event, ToolCallArguments
from master.parsing.json_text import JsonText
from master.parsing.tag_gate import TagGate


@dataclass(frozen=True, slots=True)
class CallHead:
    """What stands before a call's arguments; `call_id` is None where the model gives none."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class SectionTags:
    """`read_head` makes a head of the text between a call's opening tag and its arguments, None if it is none.

    `layout` are the characters before a section that belong to it.
    """

    begin: str
    call_begin: str
    call_end: str
    end: str
    read_head: Callable[[str], CallHead | None]
    layout: str = ""


class _Place(Enum):
    IN_TEXT = auto()
    IN_SECTION = auto()
    IN_HEAD = auto()
    IN_ARGUMENTS = auto()


class CallSectionParser(CallParser):
    def __init__(self, calls: CallSeries, tags: SectionTags) -> None:
        super().__init__(calls)
        self._tags = tags
        self._place = _Place.IN_TEXT
        self._gate = TagGate(tags.begin, layout=tags.layout)
        self._written: list[str] = []  # since the section's begin, or the last call: content, if no call follows
        self._head: list[str] = []
        self._value = JsonText()
        self._has_called = False  # in this section
        self._is_noise = True  # what comes between calls

    def _read(self, text: str, events: list[Event]) -> str:
        match self._place:
            case _Place.IN_TEXT:
                return self._read_text(text, events)
            case _Place.IN_SECTION:
                return self._read_section(text, events)
            case _Place.IN_HEAD:
                return self._read_head(text, events)
            case _Place.IN_ARGUMENTS:
                return self._read_arguments(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._written.append(self._gate.flush())
        if self._place is _Place.IN_TEXT:
            self._give_back(events)
        elif not self._has_called and self._place is not _Place.IN_ARGUMENTS:
            self._give_back_section(events)
        return events

    def _read_text(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.text:
            events.append(ContentDelta(passed.text))
        if passed.tag is not None:
            self._written = [passed.layout, passed.tag]
            self._has_called = False
            self._enter_section()
        return passed.rest

    def _enter_section(self) -> None:
        self._gate = TagGate(self._tags.call_begin, self._tags.call_end, self._tags.end, layout="")
        self._place = _Place.IN_SECTION

    def _read_section(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if not self._is_noise and passed.text:
            events.append(ContentDelta(passed.text))
        self._written += [passed.text, passed.tag or ""]
        if passed.tag is None:
            return ""
        self._is_noise = True
        if passed.tag == self._tags.call_begin:
            self._head = []
            self._gate = TagGate("{", self._tags.call_end, self._tags.end, layout="")
            self._place = _Place.IN_HEAD
        elif passed.tag == self._tags.end:
            if not self._has_called:
                self._give_back_section(events)
            self._written.clear()
            self._gate = TagGate(self._tags.begin, layout=self._tags.layout)
            self._place = _Place.IN_TEXT
        return passed.rest

    def _read_head(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        self._head.append(passed.text)
        self._written.append(passed.text)
        if passed.tag is None:
            return ""
        head = self._tags.read_head("".join(self._head))
        if head is None:
            self._enter_section()
            return passed.tag + passed.rest
        self._has_called = True
        self._written.clear()
        start = self._calls.start(head.name, head.call_id)
        events.append(start)
        if passed.tag == "{":
            self._value = JsonText()
            self._place = _Place.IN_ARGUMENTS
        else:
            events.append(ToolCallArguments(start.index, "{}"))
            self._enter_section()
        return passed.tag + passed.rest

    def _read_arguments(self, text: str, events: list[Event]) -> str:
        passed: list[str] = []
        end = self._value.feed(text, 0, passed)
        if passed:
            events.append(ToolCallArguments(self._calls.count - 1, "".join(passed)))
        if end is None:
            return ""
        self._enter_section()
        self._is_noise = not self._value.is_broken
        return self._value.unpassed + text[end:]

    def _give_back_section(self, events: list[Event]) -> None:
        """Gives out what was written since the section began, unless that is nothing but tags."""
        text = "".join(self._written)
        for tag in (self._tags.begin, self._tags.call_begin, self._tags.call_end, self._tags.end):
            text = text.replace(tag, "")
        if text.strip():
            self._give_back(events)

    def _give_back(self, events: list[Event]) -> None:
        text = "".join(self._written)
        self._written.clear()
        if text:
            events.append(ContentDelta(text))
