"""Passes text on up to a tag, holding back what may belong to one."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """`text` is to be given out. If a `tag` was found, `layout` stood between text and tag and `rest` follows it."""

    text: str
    tag: str | None = None
    layout: str = ""
    rest: str = ""


class TagGate:
    """A run of `layout` characters (whitespace) right before a tag belongs to the tag."""

    def __init__(self, *tags: str, layout: str = " \t\r\n") -> None:
        self._tags = tags
        self._pattern = re.compile("|".join(map(re.escape, tags)))
        self._layout = layout
        self._held = ""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def feed(self, delta: str) -> Passed:
        text = self._held + delta
        found = self._pattern.search(text)
        if found is None:
            passed = text[: len(text) - self._num_begun(text)].rstrip(self._layout)
            self._held = text[len(passed) :]
            return Passed(passed)
        self._held = ""
        before = text[: found.start()]
        passed = before.rstrip(self._layout)
        return Passed(passed, found[0], before[len(passed) :], text[found.end() :])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _num_begun(self, text: str) -> int:
        """Length of the longest end of the text that begins a tag."""
        return max(
            (length for tag in self._tags for length in range(1, len(tag)) if text.endswith(tag[:length])), default=0
        )
