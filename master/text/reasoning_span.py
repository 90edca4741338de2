"""Tells the part of an output's text that is reasoning, where stop strings do not count."""

from dataclasses import dataclass
from enum import Enum, auto

NEWLINES = "\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningSpan:
    """Reasoning goes from `open`, which may only begin an output, to `close`; the prompt has begun what `is_open`."""

    open: str
    close: str
    is_open: bool


class _Place(Enum):
    BEFORE = auto()
    WITHIN = auto()
    AFTER = auto()


class ReasoningSplitter:
    def __init__(self, span: ReasoningSpan | None) -> None:
        self._span = span
        self._place = _Place.WITHIN if span is not None and span.is_open else _Place.BEFORE
        self._held = ""  # what may be the opening tag
        self._tail = ""  # where the closing tag may have begun

    def split(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that the text adds. Only what may be an opening tag is held back."""
        if self._span is None or self._place is _Place.AFTER:
            return "", text
        if self._place is _Place.WITHIN:
            return self._split_within(text, self._span.close)
        self._held += text
        begun = self._held.lstrip(NEWLINES)
        if not begun.startswith(self._span.open) and self._span.open.startswith(begun):
            return "", ""
        text, self._held = self._held, ""
        is_reasoning = begun.startswith(self._span.open)
        self._place = _Place.WITHIN if is_reasoning else _Place.AFTER
        return self.split(text)

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _split_within(self, text: str, close: str) -> tuple[str, str]:
        seen = self._tail + text
        start = seen.find(close)
        if start < 0:
            self._tail = seen[-(len(close) - 1) :]
            return text, ""
        self._place = _Place.AFTER
        end = start + len(close) - len(self._tail)
        return text[:end], text[end:]
