"""Reads and writes calls as Llama 3.2 and 4 do: all of the output is a list of Python calls, [f(a=1, b="x"), g()].

It may stand between <|python_start|> and <|python_end|>. A call is given out once its first argument, or its closing
bracket, shows that it is one. Python's literals become JSON.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries, openai_call_id
from master.parsing.call_parser import CallParser
from master.parsing.events import ContentDelta, Event, ToolCallArguments
from master.parsing.grammar_writer import GrammarWriter
from master.parsing.json_text import JsonText
from master.parsing.tool_definitions import ToolDefinition
from master.parsing.typed_arguments import properties_of

START = "<|python_start|>"
END = "<|python_end|>"
NAME = re.compile(r"[A-Za-z_][\w.:/-]*")
KEY = re.compile(r"[A-Za-z_]\w*")
WHITESPACE = " \t\r\n"


class _Place(Enum):
    START = auto()
    BEFORE_CALL = auto()
    IN_NAME = auto()
    BEFORE_KEY = auto()
    IN_KEY = auto()
    IN_VALUE = auto()
    AFTER_VALUE = auto()
    AFTER_CALL = auto()
    AFTER_LIST = auto()
    IN_TEXT = auto()


class PythonicParser(CallParser):
    def __init__(self, calls: CallSeries) -> None:
        super().__init__(calls)
        self._place = _Place.START
        self._written: list[str] = []  # what is content if no call follows
        self._name = ""
        self._key = ""
        self._num_arguments = 0
        self._has_started = False  # the call has been given out
        self._value = JsonText()
        self._has_value = False  # it has begun

    def _read(self, text: str, events: list[Event]) -> str:
        if self._place is _Place.IN_TEXT:
            events.append(ContentDelta(text))
            return ""
        if self._place is _Place.IN_VALUE:
            return self._read_value(text, events)
        self._written.append(text[0])
        is_taken = self._take(text[0], events)
        return text[1:] if is_taken else self._give_back() + text[1:]

    def finish(self) -> list[Event]:
        events: list[Event] = []
        written = "".join(self._written)
        is_layout = self._place is _Place.AFTER_LIST and END.startswith(written.strip())
        if not is_layout and not self._has_started and written.strip() != START:
            events += [ContentDelta(written)] if written else []
        return events

    def _take(self, character: str, events: list[Event]) -> bool:
        """False for a character that can't come here."""
        is_space = character in WHITESPACE
        match self._place:
            case _Place.START:
                return self._take_opening()
            case _Place.BEFORE_CALL:
                if not is_space:
                    self._name = character
                    self._num_arguments = 0
                    self._place = _Place.IN_NAME
                return is_space or NAME.fullmatch(character) is not None
            case _Place.IN_NAME:
                if character == "(":
                    self._place = _Place.BEFORE_KEY
                    return True
                self._name += character
                return len(self._name) <= 128 and NAME.fullmatch(self._name) is not None
            case _Place.BEFORE_KEY | _Place.AFTER_VALUE:
                return is_space or self._take_separator(character, events)
            case _Place.IN_KEY:
                return self._take_key(character, events)
            case _Place.AFTER_CALL:
                if character in ",]":
                    self._place = _Place.BEFORE_CALL if character == "," else _Place.AFTER_LIST
                    self._written.clear()
                return is_space or character in ",]"
        return END.startswith("".join(self._written).strip())

    def _take_opening(self) -> bool:
        opening = "".join(self._written).strip()
        if opening.removeprefix(START).strip() == "[":
            self._place = _Place.BEFORE_CALL
            return True
        return START.startswith(opening) or opening.removeprefix(START).strip() == ""

    def _take_separator(self, character: str, events: list[Event]) -> bool:
        if character == ")":
            self._start(events)
            self._give_out("}" if self._num_arguments else "{}", events)
            self._has_started = False
            self._written.clear()
            self._place = _Place.AFTER_CALL
            return True
        if self._place is _Place.AFTER_VALUE:
            self._place = _Place.BEFORE_KEY
            return character == ","
        self._key = character
        self._place = _Place.IN_KEY
        return KEY.fullmatch(character) is not None

    def _take_key(self, character: str, events: list[Event]) -> bool:
        if character != "=":
            self._key += character
            return KEY.fullmatch(self._key.rstrip(WHITESPACE)) is not None
        self._start(events)
        opening = ", " if self._num_arguments else "{"
        self._give_out(f'{opening}"{self._key.strip()}": ', events)
        self._num_arguments += 1
        self._value = JsonText()
        self._has_value = False
        self._place = _Place.IN_VALUE
        return True

    def _read_value(self, text: str, events: list[Event]) -> str:
        if not self._has_value:
            text = text.lstrip(WHITESPACE)
        self._has_value = self._has_value or bool(text)
        passed: list[str] = []
        end = self._value.feed(text, 0, passed)
        if passed:
            self._give_out("".join(passed), events)
        if end is None:
            return ""
        self._place = _Place.IN_TEXT if self._value.is_broken else _Place.AFTER_VALUE
        return self._value.unpassed + text[end:]

    def _start(self, events: list[Event]) -> None:
        if not self._has_started:
            events.append(self._calls.start(self._name))
            self._has_started = True
            self._written.clear()

    def _give_out(self, text: str, events: list[Event]) -> None:
        events.append(ToolCallArguments(self._calls.count - 1, text))

    def _give_back(self) -> str:
        written = "".join(self._written)
        self._written.clear()
        self._place = _Place.IN_TEXT
        return written


def _write(writer: GrammarWriter, tools: Sequence[ToolDefinition], is_many: bool) -> str:
    call = writer.one_of(
        f"{writer.text(tool.name + '(')} {_arguments(writer, tool)} {writer.text(')')}" for tool in tools
    )
    calls = writer.one_or_more(call, writer.text(", ")) if is_many else call
    return f"{writer.text('[')} {calls} {writer.text(']')}"


def _arguments(writer: GrammarWriter, tool: ToolDefinition) -> str:
    """Those that are required come first; each further one brings its comma."""
    required: list[str] = []
    optional: list[str] = []
    for key, schema, is_required in properties_of(tool.parameters):
        if KEY.fullmatch(key):
            argument = writer.rule(f"{writer.text(key + '=')} {writer.json(schema)}")
            (required if is_required else optional).append(argument)
    comma = writer.text(", ")
    further = [f"({comma} {argument})?" for argument in optional]
    if required:
        return " ".join([f" {comma} ".join(required), *further])
    if not optional:
        return ""
    firsts = (" ".join([argument, *further[number + 1 :]]) for number, argument in enumerate(optional))
    return f"({writer.one_of(firsts)})?"


PYTHONIC = CallFormat(
    name="pythonic",
    tags=(START, END),
    is_told_by=lambda template: START in template or "[func_name1(" in template,
    new_parser=PythonicParser,
    new_id=openai_call_id,
    write=_write,
)
