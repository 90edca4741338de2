"""R26: time limits for others count only while this process runs."""

import asyncio
import threading
import time

from serving.own_time import is_done_within

LONG_S = 30.0


async def test_what_came_during_a_pause_of_ours_came_in_time() -> None:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    task: asyncio.Task[object] = asyncio.create_task(arrived.wait())
    threading.Timer(0.1, loop.call_soon_threadsafe, (arrived.set,)).start()
    waiting = asyncio.create_task(is_done_within(task, 0.4))
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251  the pause, longer than the limit
    assert await waiting


async def test_what_does_not_come_is_given_up_and_goes_on() -> None:
    task: asyncio.Task[object] = asyncio.create_task(asyncio.sleep(LONG_S))
    assert not await is_done_within(task, 0.05)
    assert not task.done()
    task.cancel()


async def test_what_is_there_is_not_waited_for() -> None:
    task: asyncio.Task[object] = asyncio.create_task(asyncio.sleep(0))
    assert await is_done_within(task, LONG_S)
