"""The life of a serving process, the same for masters and workers.

    start (bind, find, register) → serve → leave: not ready, but serving on → drain: what runs goes on → close

The first signal goes from serving, or from starting, to the next phase; a second one goes to close.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from config.flags import FlagError
from serving.stop_signal import StopSignal

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # the process is gone within this once it closes, whatever hangs


class ServingProcess(Protocol):
    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Returns once it serves; what is to be closed is on the stack. Raises FlagError when it cannot begin."""
        ...

    async def failed(self) -> None:
        """Never returns; raises when the process can't go on."""
        ...

    def leave(self) -> None:
        """Say everywhere that no new work should come; what comes all the same is still taken."""
        ...

    async def drained(self) -> None:
        """Take nothing new; returns when nothing is left."""
        ...


@dataclass(frozen=True, slots=True)
class LeaveTimes:
    """How long a process that was told to end serves on (`lame_duck_s`), and then finishes what it has (`drain_s`)."""

    drain_s: float
    lame_duck_s: float = 0.0

    @property
    def limit_s(self) -> float:
        """The process is gone within this after the first signal."""
        return self.lame_duck_s + self.drain_s + CLOSE_S


async def live(process: ServingProcess, stop: StopSignal, times: LeaveTimes) -> None:
    """Returns when the process has ended in order. Raises what its `start` and `failed` raise."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            if not await finished_before(process.start(stack), stop.wait()):
                logger.info("told to end before it served")
                return
            await finished_before(process.failed(), stop.wait())
            process.leave()
            await finished_before(asyncio.sleep(times.lame_duck_s), stop.wait_urgent())
            async with asyncio.timeout(times.drain_s):
                await finished_before(process.drained(), stop.wait_urgent())
        except TimeoutError:
            logger.warning("not drained within %g s", times.drain_s)
        finally:
            stop.leave_within(CLOSE_S)


def end_process() -> NoReturn:
    """Status 0, now. The interpreter's own end frees what the system frees anyway, and takes seconds with torch."""
    logging.shutdown()
    os._exit(0)


async def bind(flag_name: str, port: int | Path, start: Awaitable[None]) -> None:
    """Raises FlagError naming the flag when the port can't be had."""
    try:
        await start
    except OSError as error:
        raise FlagError(flag_name, f"{port}: {error.strerror or error}") from error


async def finished_before(work: Coroutine[None, None, None], other: Coroutine[None, None, None]) -> bool:
    """Runs both; False if `other` ended first, and `work` was cancelled. Raises what `work` raises."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(other)
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
