"""Which prefill and decode workers reach each other, on a clock that its caller reads.

A transfer that fails marks the pair. A marked pair is left out until its pause is over; then one request tries it, and
either heals it or doubles the pause. Each worker may be fine with everybody else, so the pair is marked and nobody's
circuit is touched.
"""

from dataclasses import dataclass

MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0

Pair = tuple[str, str]  # the prefill worker's name, the decode worker's


@dataclass(slots=True)
class _Mark:
    pause_s: float
    next_try_s: float
    is_tried: bool = False


class PairHealth:
    def __init__(self) -> None:
        self._marks: dict[Pair, _Mark] = {}

    @property
    def marked(self) -> list[Pair]:
        return list(self._marks)

    def may_try(self, pair: Pair, now_s: float) -> bool:
        mark = self._marks.get(pair)
        return mark is None or now_s >= mark.next_try_s

    def try_once(self, pair: Pair, now_s: float) -> None:
        """A request tries the pair; if that is never heard of again, another one may after the pause."""
        mark = self._marks.get(pair)
        if mark is not None:
            mark.next_try_s = now_s + mark.pause_s
            mark.is_tried = True

    def succeed(self, pair: Pair) -> bool:
        """KV has moved. True if that healed the pair."""
        return self._marks.pop(pair, None) is not None

    def fail(self, pair: Pair, now_s: float) -> bool:
        """True if the pair was fine before. What else was under way when it was marked does not lengthen its pause."""
        mark = self._marks.get(pair)
        if mark is None:
            self._marks[pair] = _Mark(MIN_PAUSE_S, now_s + MIN_PAUSE_S)
            return True
        if mark.is_tried:
            mark.pause_s = min(mark.pause_s * 2, MAX_PAUSE_S)
            mark.next_try_s = now_s + mark.pause_s
            mark.is_tried = False
        return False

    def forget(self, worker: str) -> None:
        """The worker is known no more."""
        self._marks = {pair: mark for pair, mark in self._marks.items() if worker not in pair}
