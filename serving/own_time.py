"""Time limits for others that only count while this process runs.

After a pause of ours (a blocked loop, a stopped process) every deadline has passed, though what we waited for may be in
the socket since long. So waiting is counted in ticks: a pause, however long, is one of them.
"""

import asyncio

TICK_S = 0.25


async def is_done_within(task: "asyncio.Task[object]", limit_s: float) -> bool:
    """Whether the task has ended after at most `limit_s` of waiting; it goes on when it has not."""
    tick_s = min(TICK_S, limit_s / 4)
    for _ in range(round(limit_s / tick_s)):
        done, _ = await asyncio.wait({task}, timeout=tick_s)
        if done:
            return True
    return task.done()
