"""Puts together what a client gets from a parser, over text cut in any way."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries
from master.parsing.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from master.parsing.output_parser import TextParser


@dataclass
class Call:
    name: str
    arguments: str = ""


@dataclass
class Answer:
    """Equal for two streams that differ only in how their text was cut; `order` has what came after what."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case ContentDelta(text):
                assert text
                self.content += text
                self._note("content")
            case ReasoningDelta(text):
                assert text
                self.reasoning += text
                self._note("reasoning")
            case ToolCallStart(index, call_id, name):
                assert index == len(self.calls)
                self.calls.append(Call(name))
                self.ids.append(call_id)
                self._note(f"call {index}")
            case ToolCallArguments(index, text):
                assert text
                assert index == len(self.calls) - 1
                self.calls[index].arguments += text

    def _note(self, what: str) -> None:
        if self.order[-1:] != [what]:
            self.order.append(what)


def new_parser(call_format: CallFormat) -> TextParser:
    ids = (f"id-{number}" for number in itertools.count())
    return call_format.new_parser(CallSeries(lambda: next(ids)))


def read(parser: TextParser, *pieces: str) -> Answer:
    answer = Answer()
    for event in _events(parser, pieces):
        answer.add(event)
    assert parser.has_tool_calls == bool(answer.calls)
    return answer


def cut(text: str, lengths: Sequence[int]) -> list[str]:
    """`lengths` are used again from the start when they are used up."""
    pieces = []
    start = 0
    for length in itertools.cycle(lengths):
        if start >= len(text):
            break
        pieces.append(text[start : start + length])
        start += length
    return pieces


def _events(parser: TextParser, pieces: Iterable[str]) -> Iterator[Event]:
    for piece in pieces:
        yield from parser.feed(piece)
    yield from parser.finish()
