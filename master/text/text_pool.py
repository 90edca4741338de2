"""Does work on long texts in threads: tokenising, detokenising, chat templates."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from config.cores import usable_cores
from master.errors import ErrorKind, ServingError

P = ParamSpec("P")
T = TypeVar("T")

THREAD_NAME = "text"
MAX_THREADS = 4
MAX_WAITING = 256
# Characters or token ids. What is shorter takes less than a millisecond or two, and a thread would cost more.
MAX_IN_LOOP = 10_000


class TextPool:
    """A pool of its own: nothing else waits behind a client's long text, and it is bounded."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        threads = min(MAX_THREADS, usable_cores())
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=THREAD_NAME)
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does the work, in a thread unless its `size` is small.

        Raises ServingError OVERLOADED when too much is waiting, and what the work raises.
        """
        if size <= MAX_IN_LOOP:
            return work(*args, **kwargs)
        if self._num_waiting >= self._max_waiting:
            message = f"{self._num_waiting} long texts are being read, no more are taken"
            raise ServingError(ErrorKind.OVERLOADED, message)
        self._num_waiting += 1
        future = self._executor.submit(work, *args, **kwargs)
        awaited = asyncio.wrap_future(future)
        # a caller that leaves does not end what has begun
        awaited.add_done_callback(lambda _: self._done())
        return await awaited

    def close(self) -> None:
        """What has not begun is not done."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _done(self) -> None:
        self._num_waiting -= 1
