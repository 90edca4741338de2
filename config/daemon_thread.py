"""Runs what may block for ever in a thread that nobody has to wait for: not its caller, not the end of the process.

A thread of asyncio's own pool would be waited for when the loop is closed, and once more when the interpreter ends.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """What `function` gives or raises. Cancelled, it returns at once and leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_succeed, outcome, function())
        except BaseException as error:
            settle = partial(_fail, outcome, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome


def _succeed(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
