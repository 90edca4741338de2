"""Reads the output of models that write content only."""

from master.parsing.events import ContentDelta, Event


class PlainParser:
    has_tool_calls = False

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []
