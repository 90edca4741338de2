"""Splits one sequence's text into reasoning, content and calls: reasoning first, then calls in what is left."""

from typing import Protocol

from master.parsing.events import ContentDelta, Event
from master.parsing.reasoning import ReasoningParser


class TextParser(Protocol):
    """Reads one sequence's text as it comes.

    How the text is cut into pieces changes only how content, reasoning and arguments are cut, never what they
    add up to. Text that turns out to be no call is content, as it was written. A call whose start was given out
    stays a call, even if the output ends, or stops being JSON, within its arguments.
    """

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call was given out; an output that then stops by itself has finish reason TOOL_CALLS."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What was held back, once no more text comes. Nothing may be fed after it."""


class OutputParser(TextParser, Protocol):
    """One that reads all of an output."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token counts as reasoning, its closing tag included."""


class ReasoningThenCalls:
    """Calls that a model only thinks about are reasoning."""

    def __init__(self, reasoning: ReasoningParser | None, calls: TextParser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def has_tool_calls(self) -> bool:
        return self._calls.has_tool_calls

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_reasoning

    def feed(self, text: str) -> list[Event]:
        if self._reasoning is None:
            return self._calls.feed(text)
        return self._read(self._reasoning.feed(text))

    def finish(self) -> list[Event]:
        if self._reasoning is None:
            return self._calls.finish()
        return self._read(self._reasoning.finish()) + self._calls.finish()

    def _read(self, events: list[Event]) -> list[Event]:
        read: list[Event] = []
        for event in events:
            if isinstance(event, ContentDelta):
                read += self._calls.feed(event.text)
            else:
                read.append(event)
        return read
