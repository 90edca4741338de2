"""Reads calls as Mistral's models write them, after [TOOL_CALLS]: name[ARGS]{…}, once for each call, or the older
[{"name": …, "arguments": {…}}, …]. https://github.com/mistralai/mistral-common defines both by tokenizer version.

Whitespace next to calls is dropped, and so is a [TOOL_CALLS] that ends the output. What follows it and is no call
is content, together with the tag.
"""

from dataclasses import replace
from enum import Enum, auto

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries, mistral_call_id
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event, ToolCallArguments
from master.parsing.json_call import CallObject
from master.parsing.json_layout import JsonLayout
from master.parsing.json_text import JsonText
from master.parsing.mistral_header import ARGS, CALL_ID, HeaderEnd, MistralHeader
from master.parsing.tag_gate import TagGate

TAG = "[TOOL_CALLS]"
WHITESPACE = " \t\r\n"


class _Place(Enum):
    IN_TEXT = auto()
    IN_HEADER = auto()
    IN_ARGUMENTS = auto()
    IN_ARRAY = auto()  # before, between or after its objects
    IN_OBJECT = auto()


class MistralParser(CallParser):
    def __init__(self, calls: CallSeries) -> None:
        super().__init__(calls)
        self._gate = TagGate(TAG)
        self._place = _Place.IN_TEXT
        self._lead: list[str] = []  # since the tag or the last call; content, if no call follows
        self._header = MistralHeader()
        self._span = JsonText()
        self._object = CallObject(calls, "", is_marked=True)
        self._is_after_call = False

    def _read(self, text: str, events: list[Event]) -> str:
        match self._place:
            case _Place.IN_TEXT:
                return self._read_text(text, events)
            case _Place.IN_HEADER:
                return self._read_header(text, events)
            case _Place.IN_ARGUMENTS:
                return self._read_arguments(text, events)
            case _Place.IN_ARRAY:
                return self._read_array(text, events)
            case _Place.IN_OBJECT:
                return self._read_object(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        match self._place:
            case _Place.IN_OBJECT:
                self._object.finish(events)
            case _Place.IN_HEADER:
                lead = "".join(self._lead)
                if lead.strip() != TAG:
                    events.append(ContentDelta(lead))
            case _Place.IN_TEXT:
                held = self._gate.flush()
                if held and not (self._is_after_call and held.isspace()):
                    events.append(ContentDelta(held))
        return events

    def _read_text(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.text:
            self._is_after_call = False
            events.append(ContentDelta(passed.text))
        if passed.tag is not None:
            self._lead = [passed.layout, TAG]
            self._header = MistralHeader()
            self._place = _Place.IN_HEADER
        return passed.rest

    def _read_header(self, text: str, events: list[Event]) -> str:
        for position, character in enumerate(text):
            end = self._header.add(character)
            if end is None:
                continue
            self._lead.append(text[:position])
            match end:
                case HeaderEnd.OBJECT:
                    events.append(self._calls.start(self._header.name, self._header.call_id))
                    self._span = JsonText()
                    self._place = _Place.IN_ARGUMENTS
                    return text[position:]
                case HeaderEnd.ARRAY:
                    self._is_after_call = False
                    self._lead.append(character)
                    self._place = _Place.IN_ARRAY
                    return text[position + 1 :]
                case HeaderEnd.BROKEN:
                    return self._give_back(text[position:], events)
        self._lead.append(text)
        return ""

    def _read_arguments(self, text: str, events: list[Event]) -> str:
        passed: list[str] = []
        end = self._span.feed(text, 0, passed)
        if passed:
            events.append(ToolCallArguments(self._calls.count - 1, "".join(passed)))
        if end is None:
            return ""
        self._is_after_call = True
        self._place = _Place.IN_TEXT
        return self._span.unpassed + text[end:]

    def _read_array(self, text: str, events: list[Event]) -> str:
        for position, character in enumerate(text):
            if character in WHITESPACE or (character == "," and self._is_after_call):
                continue
            self._lead.append(text[:position])
            if character == "{":
                self._object = CallObject(self._calls, "".join(self._lead), is_marked=True)
                self._place = _Place.IN_OBJECT
                return text[position:]
            if character == "]" and self._is_after_call:
                self._place = _Place.IN_TEXT
                return text[position + 1 :]
            return self._give_back(text[position:], events)
        self._lead.append(text)
        return ""

    def _read_object(self, text: str, events: list[Event]) -> str:
        rest = self._object.feed(text, events)
        if self._object.is_over:
            self._lead.clear()
            self._is_after_call = self._object.is_call
            self._place = _Place.IN_ARRAY if self._object.is_call else _Place.IN_TEXT
        return rest

    def _give_back(self, rest: str, events: list[Event]) -> str:
        lead = "".join(self._lead)
        if lead:
            events.append(ContentDelta(lead))
        self._is_after_call = False
        self._place = _Place.IN_TEXT
        return rest


MISTRAL = CallFormat(
    name="mistral",
    tags=(TAG, ARGS, CALL_ID),
    is_told_by=lambda template: TAG in template and ARGS in template,
    new_parser=MistralParser,
    new_id=mistral_call_id,
    write=JsonLayout(before_name=TAG, before_arguments=ARGS).write,
)

MISTRAL_ARRAY = replace(
    MISTRAL,
    tags=(TAG,),
    is_told_by=lambda template: TAG in template and ARGS not in template,
    write=JsonLayout(
        begin=TAG + " [",
        before_name='{"name": ',
        is_name_quoted=True,
        before_arguments=', "arguments": ',
        after_arguments="}",
        between=", ",
        end="]",
    ).write,
)
