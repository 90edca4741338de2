"""What parsers of calls have in common: text comes in pieces of any size, and each step reads the beginning of one."""

from abc import ABC, abstractmethod

from master.parsing.call_ids import CallSeries
from master.parsing.events import Event


class CallParser(ABC):
    """An `OutputParser` of calls, but for `finish`."""

    def __init__(self, calls: CallSeries) -> None:
        self._calls = calls

    @property
    def has_tool_calls(self) -> bool:
        return self._calls.count > 0

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._read(text, events)
        return events

    @abstractmethod
    def _read(self, text: str, events: list[Event]) -> str:
        """Reads what the text begins with, adds what that means, and returns what is left of it, or stands for it."""
