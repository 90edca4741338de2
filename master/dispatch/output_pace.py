"""Holds back what comes within a moment of a stream's latest part, so that it goes out together."""

import asyncio
from collections.abc import Callable

# Nobody sees it, and a master that has more tokens than it can write one by one then writes fewer and larger parts.
MOMENT_S = 0.002


class OutputPace:
    """One timer for all requests of a master: those that wait are released together, none later than a moment."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def later(self, release: Callable[[], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(MOMENT_S, self._release)
        self._waiting.append(release)

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for release in waiting:
            release()
