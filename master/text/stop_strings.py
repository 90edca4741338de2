"""Finds stop strings in text that arrives in pieces.

An Aho-Corasick automaton over all stops (Aho and Corasick 1975) reads the text once. Its state is the longest
end of the text that begins some stop, which is just what must be held back; so cost per character depends
neither on the number of stops nor on their length.
"""

from collections import deque
from collections.abc import Sequence

import msgspec


class StopOutcome(msgspec.Struct, frozen=True):
    """`text` may be given out. After a match it is the last: it ends before the stop, or with it if included."""

    text: str
    matched_stop: str | None = None


class StopStrings:
    """The stops of a request, for all its sequences: immutable once made.

    State 0 is the empty text. `matched[state]` is the longest stop that ends there, and `num_held[state]`
    the length of the longest end of the text that a further character may still lead on to a stop.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.matched: list[str | None] = [None]
        self.num_held = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def begins_nowhere_in(self, text: str) -> bool:
        return self._next[0].keys().isdisjoint(text)

    def step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for length, character in enumerate(stop, start=1):
            following = self._next[state].setdefault(character, len(self._next))
            if following == len(self._next):
                self._next.append({})
                self._fallback.append(0)
                self.matched.append(None)
                self.num_held.append(length)
            state = following
        self.matched[state] = stop

    def _link(self) -> None:
        """Breadth first, so that every state a fallback leads to is complete."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            fallback = self._fallback[state]
            if self.matched[state] is None:
                self.matched[state] = self.matched[fallback]
            if not self._next[state]:
                self.num_held[state] = self.num_held[fallback]
            for character, following in self._next[state].items():
                self._fallback[following] = self.step(fallback, character)
                queue.append(following)


class StopMatcher:
    """Finds the first match to be complete, so how the text was cut into pieces changes nothing.

    The longest wins of those that end at the same character.
    """

    def __init__(self, stops: StopStrings, include_stop: bool) -> None:
        self._automaton = stops
        self._include_stop = include_stop
        self._state = 0
        self._held = ""

    def feed(self, delta: str, can_match: bool = True) -> StopOutcome:
        """Takes the next text; a stop whose last character is in it counts only if `can_match`.

        Nothing may be fed after a match.
        """
        automaton, state = self._automaton, self._state
        if state == 0 and automaton.begins_nowhere_in(delta):
            return StopOutcome(delta)
        text = self._held + delta
        for end, character in enumerate(delta, start=len(self._held) + 1):
            state = automaton.step(state, character)
            stop = automaton.matched[state]
            if stop is not None and can_match:
                self._state, self._held = 0, ""
                return StopOutcome(text[: end if self._include_stop else end - len(stop)], stop)
        num_released = len(text) - automaton.num_held[state]
        self._state, self._held = state, text[num_released:]
        return StopOutcome(text[:num_released])

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._state, self._held = self._held, 0, ""
        return held
