"""C2: a client's long text is work for threads of their own, of which only so much may wait."""

import asyncio
import threading

import pytest

from master.errors import ErrorKind, ServingError
from master.text.text_pool import MAX_IN_LOOP, THREAD_NAME, TextPool


def thread_name() -> str:
    return threading.current_thread().name


async def test_only_what_is_long_goes_to_a_thread() -> None:
    pool = TextPool()
    assert (await pool.run(MAX_IN_LOOP + 1, thread_name)).startswith(THREAD_NAME)
    assert not (await pool.run(MAX_IN_LOOP, thread_name)).startswith(THREAD_NAME)
    pool.close()


async def test_more_than_may_wait_is_refused_until_there_is_room() -> None:
    pool, go_on = TextPool(max_waiting=2), threading.Event()
    waiting = [asyncio.create_task(pool.run(MAX_IN_LOOP + 1, go_on.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ServingError) as refused:
        await pool.run(MAX_IN_LOOP + 1, thread_name)
    assert refused.value.kind is ErrorKind.OVERLOADED and refused.value.retry_after_s
    go_on.set()
    await asyncio.gather(*waiting)
    assert (await pool.run(MAX_IN_LOOP + 1, thread_name)).startswith(THREAD_NAME)
    pool.close()


async def test_what_the_work_raises_is_raised() -> None:
    pool = TextPool()
    with pytest.raises(ZeroDivisionError):
        await pool.run(MAX_IN_LOOP + 1, lambda: 1 // 0)
    pool.close()
