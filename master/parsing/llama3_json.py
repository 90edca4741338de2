"""Reads and writes calls as Llama 3 writes them: {"name": …, "parameters": {…}}, several with ";" between them.

A call is the output's beginning, follows <|python_tag|>, or follows a call. An object elsewhere, or without name
and arguments, is an answer in JSON: content. Only after the tag may a call lack its arguments. Whitespace before
the tag and around calls is dropped, as is a tag that ends the output.
"""

from enum import Enum, auto

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries, openai_call_id
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event
from master.parsing.json_call import CallObject
from master.parsing.json_layout import JsonLayout
from master.parsing.tag_gate import TagGate

TAG = "<|python_tag|>"
WHITESPACE = " \t\r\n"


class _Place(Enum):
    START = auto()
    AFTER_TAG = auto()
    IN_OBJECT = auto()
    AFTER_CALL = auto()
    IN_TEXT = auto()


class Llama3JsonParser(CallParser):
    def __init__(self, calls: CallSeries) -> None:
        super().__init__(calls)
        self._gate = TagGate(TAG)
        self._place = _Place.START
        self._lead = ""  # what may turn out to belong to a call: whitespace, tag, semicolon
        self._object: CallObject | None = None
        self._is_after_call = False

    def _read(self, text: str, events: list[Event]) -> str:
        if self._object is not None:
            return self._read_object(self._object, text, events)
        if self._place is _Place.IN_TEXT:
            return self._read_text(text, events)
        return self._read_lead(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._object is not None:
            self._object.finish(events)
        held = self._lead if self._place is _Place.START else self._gate.flush()
        if held and not (self._is_after_call and not held.strip(WHITESPACE + ";")):
            events.append(ContentDelta(held))
        return events

    def _read_lead(self, text: str, events: list[Event]) -> str:
        for position, character in enumerate(text):
            if character in WHITESPACE:
                continue
            if character == ";" and self._place is _Place.AFTER_CALL and ";" not in self._lead + text[:position]:
                continue
            lead, self._lead = self._lead + text[:position], ""
            if character == "{":
                self._object = CallObject(self._calls, lead, is_marked=self._place is _Place.AFTER_TAG)
                self._place = _Place.IN_OBJECT
                return text[position:]
            if self._place is _Place.AFTER_TAG:
                events.append(ContentDelta(lead))
                lead = ""
            self._place = _Place.IN_TEXT
            return lead + text[position:]
        self._lead += text
        return ""

    def _read_object(self, call: CallObject, text: str, events: list[Event]) -> str:
        rest = call.feed(text, events)
        if call.is_over:
            self._object = None
            self._is_after_call = call.is_call
            self._place = _Place.AFTER_CALL if call.is_call else _Place.IN_TEXT
        return rest

    def _read_text(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.text:
            self._is_after_call = False
            events.append(ContentDelta(passed.text))
        if passed.tag is not None:
            self._lead = passed.layout + TAG
            self._place = _Place.AFTER_TAG
        return passed.rest


LLAMA3_JSON = CallFormat(
    name="llama3_json",
    tags=(TAG,),
    is_told_by=lambda template: TAG in template or '{"name": function name, "parameters":' in template,
    new_parser=Llama3JsonParser,
    new_id=openai_call_id,
    write=JsonLayout(
        before_name='{"name": ',
        is_name_quoted=True,
        before_arguments=', "parameters": ',
        after_arguments="}",
        between="; ",
    ).write,
)
