"""Reads one call written as an object: {"name": …, "arguments": {…}}, or with "parameters" (Llama).

The call is given out once its name is known and its arguments have begun, and the arguments then as they come. Their
text is the model's own, mended where it is not quite JSON, with two exceptions: null is {}, and an object written
into a string is what the string holds. Any other arguments, a missing name, or text that is no object make it no
call: all of it is content. So is what follows where given arguments stop being JSON. Members with other names are
skipped; of two with the same name the first counts.
"""

from enum import Enum, auto

import msgspec

from master.parsing.call_ids import CallSeries
from master.parsing.events import ContentDelta, Event, ToolCallArguments
from master.parsing.json_text import JsonText, whole_json

WHITESPACE = " \t\r\n"
ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})


class _Expected(Enum):
    OBJECT = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    NOTHING = auto()


class CallObject:
    """`opening` is the text before the object that belongs to it (a tag), given back if this is no call.

    A call `is_marked` if its format has said that one comes: only then may it have no arguments.
    """

    def __init__(self, calls: CallSeries, opening: str, *, is_marked: bool) -> None:
        self._calls = calls
        self._opening = opening
        self._is_marked = is_marked
        self._raw = [opening]
        self._expected = _Expected.OBJECT
        self._span: JsonText | None = None  # of the key or value that is being read
        self._written: list[str] = []  # that key or value, so far
        self._key = ""
        self._name: str | None = None
        self._id: str | None = None
        self._is_argument_text = False  # what is being read is passed on as it comes
        self._has_arguments = False
        self._arguments: list[str] = []  # known but not given out
        self._index: int | None = None
        self._unpassed = ""  # of arguments that stopped being JSON
        self.is_over = False

    @property
    def is_call(self) -> bool:
        return self._index is not None

    def feed(self, text: str, events: list[Event]) -> str:
        """Adds to `events` and returns what is to be read after the object; `is_over` tells whether it has ended."""
        position = 0
        while position < len(text) and not self.is_over:
            position = self._read(text, position)
        if not self.is_call:
            self._raw.append(text[:position])
        self._give_out(events)
        if self.is_over and not self.is_call:
            events.append(ContentDelta("".join(self._raw)))
        return self._unpassed + text[position:] if self.is_call else text[position:]

    def finish(self, events: list[Event]) -> None:
        """The output ended within the object. Of a call that was just announced there is nothing to tell."""
        if not self.is_call:
            self._give_out(events, is_last=True)
        if self.is_call:
            return
        raw = "".join(self._raw)
        if not (self._is_marked and raw.strip() == self._opening.strip()):
            events.append(ContentDelta(raw))

    def _give_out(self, events: list[Event], *, is_last: bool = False) -> None:
        if self._index is None and self._name is not None and self._can_start(is_last):
            start = self._calls.start(self._name, self._id)
            self._index = start.index
            self._raw.clear()
            events.append(start)
        if self._index is not None and self._arguments:
            events.append(ToolCallArguments(self._index, "".join(self._arguments)))
            self._arguments.clear()

    def _can_start(self, is_last: bool) -> bool:
        """A lone bracket may yet turn out to open something that is no JSON."""
        is_lone = len(self._arguments) <= 2 and "".join(self._arguments).strip() == "{"
        return self._has_arguments and (is_last or not is_lone)

    def _read(self, text: str, position: int) -> int:
        """One character or one key or value, as far as it goes."""
        if self._span is not None:
            return self._read_on(self._span, text, position)
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        match self._expected, character:
            case _Expected.OBJECT, "{":
                self._expected = _Expected.FIRST_KEY
            case (_Expected.FIRST_KEY | _Expected.COMMA, "}"):
                self._close()
            case (_Expected.FIRST_KEY | _Expected.KEY, '"'):
                self._span = JsonText()
                return position
            case _Expected.COLON, ":":
                self._expected = _Expected.VALUE
            case _Expected.VALUE, _:
                self._begin_value(character)
                return position
            case _Expected.COMMA, ",":
                self._expected = _Expected.KEY
            case _:
                self.is_over = True
                return position
        return position + 1

    def _read_on(self, span: JsonText, text: str, position: int) -> int:
        end = span.feed(text, position, self._arguments if self._is_argument_text else self._written)
        if end is None:
            return len(text)
        if span.is_broken:
            self._unpassed = span.unpassed
            self.is_over = True
            return end
        self._span = None
        self._is_argument_text = False
        written = "".join(self._written)
        self._written.clear()
        if self._expected is _Expected.VALUE:
            self._expected = _Expected.COMMA
            self._take_value(written)
        else:
            self._expected = _Expected.COLON
            self._key = _string(written) or ""
        return end

    def _begin_value(self, character: str) -> None:
        self._span = JsonText()
        if self._key in ARGUMENTS_KEYS and not self._has_arguments and character == "{":
            self._is_argument_text = self._has_arguments = True

    def _take_value(self, written: str) -> None:
        """`written` is empty for arguments that were passed on."""
        if self._key == "name" and self._name is None:
            self._name = _string(written)
            self.is_over = not self._name
        elif self._key == "id" and self._id is None:
            self._id = _string(written)
        elif self._key in ARGUMENTS_KEYS and not self._has_arguments:
            arguments = "{}" if written == "null" else _object_in_string(written)
            if arguments is None:
                self.is_over = True
            else:
                self._has_arguments = True
                self._arguments.append(arguments)

    def _close(self) -> None:
        self._expected = _Expected.NOTHING
        self.is_over = True
        if self._is_marked and not self._has_arguments:
            self._has_arguments = True
            self._arguments.append("{}")


def _string(written: str) -> str | None:
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _object_in_string(written: str) -> str | None:
    text = _string(written)
    if text is None:
        return None
    mended = whole_json(text)
    try:
        msgspec.json.decode(mended or "", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
    return mended
