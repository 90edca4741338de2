"""Faults that are asked for, by tests or by the hidden flag --inject_faults: what goes wrong, where and when.

    PLACE.ACTION[=SECONDS]@WHEN

    transfer   delay, drop, corrupt, close    a frame that this worker sends to another worker
    session    delay, drop, close             a message that it sends to a master
    step       delay, raise, nan              a step of its engine

Only a delay has SECONDS. WHEN is 3 (the third), 3+ (the third and all later ones) or *3 (every third), counted at that
place from the start of the worker: `step.nan@*3`, `transfer.delay=0.5@10+`.
"""

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_SYNTAX = re.compile(r"(\w+)\.(\w+)(?:=(\d+(?:\.\d+)?))?@(?:(\*)(\d+)|(\d+)(\+)?)", re.ASCII)


class Place(Enum):
    TRANSFER = "transfer"
    SESSION = "session"
    STEP = "step"


class Action(Enum):
    DELAY = "delay"
    DROP = "drop"
    CORRUPT = "corrupt"
    CLOSE = "close"
    RAISE = "raise"
    NAN = "nan"


class Repeat(Enum):
    ONCE = "once"
    ALWAYS = "always"
    EVERY = "every"


_ACTIONS = {
    Place.TRANSFER: (Action.DELAY, Action.DROP, Action.CORRUPT, Action.CLOSE),
    Place.SESSION: (Action.DELAY, Action.DROP, Action.CLOSE),
    Place.STEP: (Action.DELAY, Action.RAISE, Action.NAN),
}


@dataclass(frozen=True)
class Fault:
    place: Place
    action: Action
    number: int
    repeat: Repeat = Repeat.ONCE
    seconds: float = 0.0

    @staticmethod
    def parse(text: str) -> "Fault":
        """Raises ValueError saying what is wrong, without repeating the text."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ValueError("is not PLACE.ACTION[=SECONDS]@WHEN")
        place_name, action_name, seconds, star, every, number, plus = match.groups()
        known = {place.value: [action.value for action in actions] for place, actions in _ACTIONS.items()}
        if place_name not in known:
            raise ValueError(f"names no place of {', '.join(known)}")
        if action_name not in known[place_name]:
            raise ValueError(f"names no action of {', '.join(known[place_name])}")
        if (action_name == Action.DELAY.value) != (seconds is not None):
            raise ValueError("must give seconds for a delay, and for nothing else")
        if int(every or number) < 1:
            raise ValueError("must count from 1")
        repeat = Repeat.EVERY if star else Repeat.ALWAYS if plus else Repeat.ONCE
        return Fault(Place(place_name), Action(action_name), int(every or number), repeat, float(seconds or 0.0))

    def is_due(self, count: int) -> bool:
        """Whether it strikes what passes as number `count`, the first being 1."""
        if self.repeat is Repeat.EVERY:
            return count % self.number == 0
        return count == self.number or (self.repeat is Repeat.ALWAYS and count > self.number)


class FaultPoint:
    """One place, and how much has passed it. Thread-safe."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = tuple(faults)
        self._count = 0

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    def arm(self, *faults: Fault) -> None:
        """Has these faults from now on, and counts anew."""
        with self._lock:
            self._faults = faults
            self._count = 0

    def passing(self) -> list[Fault]:
        """Counts what passes now; returns what goes wrong with it."""
        with self._lock:
            self._count += 1
            return [fault for fault in self._faults if fault.is_due(self._count)]


@dataclass(frozen=True)
class FaultPlan:
    """A place without a point is left alone and costs nothing."""

    transfer: FaultPoint | None = None
    session: FaultPoint | None = None
    step: FaultPoint | None = None

    @staticmethod
    def parse(texts: Iterable[str]) -> "FaultPlan":
        """Raises what `Fault.parse` does."""
        faults = [Fault.parse(text) for text in texts]
        by_place = {place: [fault for fault in faults if fault.place is place] for place in Place}
        return FaultPlan(**{place.value: FaultPoint(chosen) for place, chosen in by_place.items() if chosen})


NO_FAULTS = FaultPlan()
