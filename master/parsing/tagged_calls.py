"""Reads calls in tags, each argument between tags of its own: <tool_call>, a name, keys and values, </tool_call>.

Values are plain text, so a value ends at the first closing tag; one that begins with a line end (where a format writes
so) ends only at a tag that begins a line. Whitespace next to a call is layout and dropped.
"""

from enum import Enum, auto

from master.parsing.call_ids import CallSeries
from master.parsing.call_parser import CallParser
from master.parsing.call_tags import CallTags
from master.parsing.events import ContentDelta, Event, ToolCallArguments
from master.parsing.tag_gate import TagGate
from master.parsing.tool_definitions import TOOL_NAME
from master.parsing.typed_arguments import TypedArguments


class _Place(Enum):
    IN_TEXT = auto()
    BEFORE_NAME = auto()
    IN_NAME = auto()
    IN_CALL = auto()
    IN_KEY = auto()
    BEFORE_VALUE = auto()
    VALUE_START = auto()
    IN_VALUE = auto()


class TaggedCallParser(CallParser):
    def __init__(self, calls: CallSeries, tags: CallTags) -> None:
        super().__init__(calls)
        self._tags = tags
        self._place = _Place.IN_TEXT
        self._gate = self._text_gate()
        self._lead = ""  # what is content if no call follows
        self._name = ""
        self._key = ""
        self._noise = ""  # within a call, where only tags are expected
        self._arguments = TypedArguments({})
        self._is_line_to_drop = False
        self._is_open = False  # a call has ended whose last tag is yet to come
        self._is_after_call = False

    def _read(self, text: str, events: list[Event]) -> str:
        match self._place:
            case _Place.IN_TEXT:
                return self._read_text(text, events)
            case _Place.BEFORE_NAME:
                return self._read_before_name(text, events)
            case _Place.IN_NAME:
                return self._read_name(text, events)
            case _Place.IN_CALL:
                return self._read_between(text, events)
            case _Place.IN_KEY:
                return self._read_key(text, events)
            case _Place.BEFORE_VALUE:
                return self._read_before_value(text, events)
            case _Place.VALUE_START:
                return self._read_value_start(text)
            case _Place.IN_VALUE:
                return self._read_value(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        held = self._gate.flush()
        if self._place in (_Place.BEFORE_NAME, _Place.IN_NAME):
            written = self._lead + self._name + held
            if written.strip() != self._tags.open:
                events.append(ContentDelta(written))
        elif self._place is _Place.IN_TEXT and held:
            is_layout = held.isspace() or (self._is_open and self._tags.close.startswith(held.strip()))
            if not (self._is_after_call and is_layout):
                events.append(ContentDelta(held))
        return events

    def _text_gate(self, *closing: str) -> TagGate:
        return TagGate(*(tag for tag in (self._tags.open, self._tags.before_name, *closing) if tag))

    def _read_text(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.text:
            self._is_after_call = False
            events.append(ContentDelta(passed.text))
        if passed.tag is None:
            return ""
        if passed.tag == self._tags.close:
            self._is_open, self._is_after_call = False, True
            self._gate = self._text_gate()
            return passed.rest
        self._lead = passed.layout + passed.tag
        self._name = ""
        is_next = passed.tag == self._tags.open and self._tags.before_name
        self._gate = TagGate(*self._tags.after_name, layout="")
        self._place = _Place.BEFORE_NAME if is_next else _Place.IN_NAME
        return passed.rest

    def _read_before_name(self, text: str, events: list[Event]) -> str:
        self._name += text
        begun = self._name.lstrip()
        if begun.startswith(self._tags.before_name):
            rest = begun[len(self._tags.before_name) :]
            self._lead += self._name[: len(self._name) - len(rest)]
            self._name = ""
            self._place = _Place.IN_NAME
            return rest
        if self._tags.before_name.startswith(begun):
            return ""
        return self._give_back(events)

    def _read_name(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        self._name += passed.text
        name = self._name.strip()
        if passed.tag is None:
            return "" if not name or TOOL_NAME.fullmatch(name) else self._give_back(events)
        if not TOOL_NAME.fullmatch(name):
            self._name += passed.tag
            return self._give_back(events) + passed.rest
        start = self._calls.start(name)
        self._arguments = TypedArguments(self._calls.parameters_of(name))
        events.append(start)
        self._give_out(self._arguments.open(), events)
        self._is_open = True
        return self._go_on(passed.tag, events) + passed.rest

    def _read_between(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        self._noise += passed.text
        return "" if passed.tag is None else self._go_on(passed.tag, events) + passed.rest

    def _read_key(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        self._key += passed.text
        if passed.tag is None:
            return ""
        self._give_out(self._arguments.begin(self._key), events)
        self._gate = TagGate(self._tags.before_value, self._tags.close)
        self._place = _Place.BEFORE_VALUE if self._tags.before_value else _Place.VALUE_START
        return passed.rest

    def _read_before_value(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.tag is None:
            return ""
        if passed.tag == self._tags.before_value:
            self._place = _Place.VALUE_START
            return passed.rest
        self._give_out(self._arguments.end(), events)
        return self._go_on(passed.tag, events) + passed.rest

    def _read_value_start(self, text: str) -> str:
        line = "\n" if self._tags.has_own_lines and text.startswith("\n") else ""
        ends = [self._tags.after_value]
        if self._tags.end:  # a closing tag is forgotten now and then
            ends += [self._tags.before_key, self._tags.end, self._tags.close]
        self._gate = TagGate(*(line + tag for tag in ends), layout="")
        self._is_line_to_drop = bool(line)  # it may be that of an empty value's closing tag, so the gate sees it
        self._place = _Place.IN_VALUE
        return text

    def _read_value(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        value = passed.text
        if value and self._is_line_to_drop:
            value, self._is_line_to_drop = value[1:], False
        self._give_out(self._arguments.text(value), events)
        if passed.tag is None:
            return ""
        self._give_out(self._arguments.end(), events)
        return self._go_on(passed.tag.removeprefix("\n"), events) + passed.rest

    def _go_on(self, tag: str, events: list[Event]) -> str:
        """Returns text that is to be read again."""
        tags = self._tags
        if tag == tags.before_key:
            self._key = ""
            self._gate = TagGate(tags.after_key, layout="")
            self._place = _Place.IN_KEY
        elif tag in (tags.end, tags.close, tags.open):
            self._end_call(events)
            return tag if tag != tags.end else ""
        else:
            self._gate = TagGate(*(name for name in (tags.before_key, tags.end, tags.close, tags.open) if name))
            self._place = _Place.IN_CALL
        return ""

    def _end_call(self, events: list[Event]) -> None:
        self._give_out(self._arguments.close(), events)
        self._is_after_call = True
        if self._noise.strip():
            events.append(ContentDelta(self._noise))
            self._is_after_call = False
        self._noise = ""
        self._gate = self._text_gate(self._tags.close)
        self._place = _Place.IN_TEXT

    def _give_out(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(ToolCallArguments(self._calls.count - 1, text))

    def _give_back(self, events: list[Event]) -> str:
        """It is no call: the tag is content, and what follows it may be a call all the same."""
        if self._lead:
            events.append(ContentDelta(self._lead))
        rest, self._name, self._lead = self._name + self._gate.flush(), "", ""
        self._is_after_call = False
        self._gate = self._text_gate()
        self._place = _Place.IN_TEXT
        return rest
