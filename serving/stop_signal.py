"""SIGTERM and Ctrl-C as events: the first asks to finish, the second to leave at once.

Both start a clock that ends the process whatever hangs in it, even a thread that never gives the interpreter back.
"""

import asyncio
import faulthandler
import signal
from types import FrameType

URGENT_S = 2.0
STDERR = 2


class StopSignal:
    """Made inside the running loop of the main thread; replaces the handling of both signals."""

    def __init__(self, limit_s: float | None = None) -> None:
        """The process is gone within `limit_s` after the first signal; None: whenever it has finished."""
        self._limit_s = limit_s
        self._asked = asyncio.Event()
        self._urged = asyncio.Event()
        self._num_signals = 0
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # not the loop's own handlers: those need a loop that turns
            signal.signal(number, self._on_signal)

    async def wait(self) -> None:
        """Returns with the first signal."""
        await self._asked.wait()

    async def wait_urgent(self) -> None:
        """Returns with the second signal."""
        await self._urged.wait()

    def leave_within(self, limit_s: float) -> None:
        """Unless it has ended before, the process ends then, and says on stderr where each of its threads stands."""
        if self._limit_s is not None:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=STDERR)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        is_first = self._num_signals == 1
        self.leave_within(self._limit_s or 0.0 if is_first else URGENT_S)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe((self._asked if is_first else self._urged).set)
