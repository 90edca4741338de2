"""Keeps markers in what users and tools say from becoming control tokens.

A marker is cut in two before the template is rendered, and the two halves are tokenised apart: no half is a marker.
"""

import re
from collections.abc import Iterable, Mapping

# a noncharacter, which no text has and no template changes
CUT = "\ufdd0"
SPOKEN_BY_OTHERS = ("user", "tool")


class UserMarkers:
    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted((marker for marker in markers if len(marker) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def cut(self, message: Mapping[str, object]) -> dict[str, object]:
        """A message whose markers are cut, if it is a user's or a tool's."""
        cut = dict(message)
        if self._pattern is None or message.get("role") not in SPOKEN_BY_OTHERS:
            return cut
        match message.get("content"):
            case str() as text:
                cut["content"] = self._cut_text(text)
            case list() as parts:
                cut["content"] = [self._cut_part(part) for part in parts]
        return cut

    def _cut_part(self, part: object) -> object:
        match part:
            case {"text": str(text), **fields}:
                return {**fields, "text": self._cut_text(text)}
        return part

    def _cut_text(self, text: str) -> str:
        assert self._pattern is not None
        return self._pattern.sub(lambda found: found[0][0] + CUT + found[0][1:], text.replace(CUT, ""))
