"""What waits to be sent to a worker."""

import asyncio
from collections import deque

from master.workers.session_call import SessionCall
from protos.session_messages import Heartbeat, ToWorker

HEARTBEAT_INTERVAL_S = 1.0


class Outbox:
    """Messages keep their order."""

    def __init__(self) -> None:
        self._messages: deque[ToWorker] = deque()
        self._has_news = asyncio.Event()

    def put(self, message: ToWorker) -> None:
        self._messages.append(message)
        self._has_news.set()

    def wake(self) -> None:
        """Let `send` return, though there may be nothing to send."""
        self._has_news.set()

    def clear(self) -> None:
        self._messages.clear()

    async def send(self, call: SessionCall) -> None:
        """Sends what is there, waiting for the first of it."""
        await self._has_news.wait()
        self._has_news.clear()
        while self._messages:
            await call.send(self._messages.popleft())

    async def beat(self) -> None:
        """Never returns. A worker hears from its master at least so often."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            self.put(Heartbeat())
