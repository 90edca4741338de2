"""Growing, jittered pauses between tries."""

import random


class Backoff:
    """Pauses in seconds, doubling from `first_s` up to `cap_s`, each shortened at random by up to half.

    The jitter keeps a fleet that lost one server from coming back in step.
    """

    def __init__(self, first_s: float = 0.1, cap_s: float = 5.0) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._next_s = first_s

    def next_s(self) -> float:
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._cap_s, self._next_s * 2)
        return pause_s

    def reset(self) -> None:
        self._next_s = self._first_s
