"""SIGTERM and Ctrl-C as events: the first asks to finish, the second to leave at once."""

import asyncio
import signal


class StopSignal:
    """Made inside the running loop; replaces the default handling of both signals."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._urged = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    async def wait(self) -> None:
        """Until the first signal."""
        await self._asked.wait()

    async def wait_urgent(self) -> None:
        """Until the second signal."""
        await self._urged.wait()

    def _on_signal(self) -> None:
        (self._urged if self._asked.is_set() else self._asked).set()
