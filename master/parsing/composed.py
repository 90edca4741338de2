"""Reasoning first, then calls in what is left."""

from master.parsing.events import ContentDelta, Event, OutputParser
from master.parsing.reasoning import ReasoningParser


class ComposedParser:
    """Calls that a model only thinks about are reasoning."""

    def __init__(self, reasoning: ReasoningParser | None, calls: OutputParser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def has_tool_calls(self) -> bool:
        return self._calls.has_tool_calls

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token counts as reasoning, its closing tag included."""
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
