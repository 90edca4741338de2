"""Reads calls as Hermes and Qwen write them, within text: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Whitespace next to a call is layout and dropped, except between a closing tag and text after it. A tag without its
object, at the end of an output that was cut off, is dropped; anything else that does not become a call is content.
"""

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries, openai_call_id
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event
from master.parsing.json_call import CallObject
from master.parsing.json_layout import JsonLayout
from master.parsing.tag_gate import TagGate

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
# a bracket too many is the most frequent slip after an object
BETWEEN_OBJECT_AND_CLOSE = " \t\r\n}]"
# what other formats have between the same tags
OTHER_BODIES = ("<function=", "<arg_key>")


class HermesParser(CallParser):
    """Text until a tag, then an object, then the closing tag or text again."""

    def __init__(self, calls: CallSeries) -> None:
        super().__init__(calls)
        self._gate = TagGate(OPEN)
        self._object: CallObject | None = None
        self._is_open = False  # a call has ended whose closing tag is yet to come
        self._is_after_call = False  # with nothing but layout in between

    def _read(self, text: str, events: list[Event]) -> str:
        if self._object is not None:
            return self._read_object(self._object, text, events)
        return self._read_text(text, events)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._object is not None:
            self._object.finish(events)
        held = self._gate.flush()
        is_layout = held.isspace() or (self._is_open and CLOSE.startswith(held.strip()))
        if held and not (self._is_after_call and is_layout):
            events.append(ContentDelta(held))
        return events

    def _read_object(self, call: CallObject, text: str, events: list[Event]) -> str:
        rest = call.feed(text, events)
        if call.is_over:
            self._object = None
            self._is_after_call = self._is_open = call.is_call
            self._gate = TagGate(CLOSE, OPEN) if call.is_call else TagGate(OPEN)
        return rest

    def _read_text(self, text: str, events: list[Event]) -> str:
        if self._is_open and self._is_after_call and not self._gate.is_holding:
            text = text.lstrip(BETWEEN_OBJECT_AND_CLOSE)
        passed = self._gate.feed(text)
        if passed.text:
            self._is_after_call = False
            events.append(ContentDelta(passed.text))
        if passed.tag == OPEN:
            self._is_open = False
            self._object = CallObject(self._calls, passed.layout + OPEN, is_marked=True)
        elif passed.tag == CLOSE:
            self._is_open = False
            self._is_after_call = True
            self._gate = TagGate(OPEN)
        return passed.rest


HERMES = CallFormat(
    name="hermes",
    tags=(OPEN, CLOSE),
    is_told_by=lambda template: OPEN in template and not any(body in template for body in OTHER_BODIES),
    new_parser=HermesParser,
    new_id=openai_call_id,
    write=JsonLayout(
        before_name=OPEN + '\n{"name": ',
        is_name_quoted=True,
        before_arguments=', "arguments": ',
        after_arguments="}\n" + CLOSE,
        between="\n",
    ).write,
    example=f'{OPEN}\n{{"name": "function", "arguments": {{"argument": "value"}}}}\n{CLOSE}',
)
