"""`python -m tests.reporting_worker`: a scripted worker that says where it is, and reports its load until stdin ends.

It goes on while a test's loop stands still; gRPC can't have it on a second loop of the same process.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from protos.session_messages import LoadReport, Role
from tests.scripted_worker import ScriptedWorker

NAME, ROLE = "mix-0", Role.MIX
INTERVAL_S = 0.05


@contextlib.asynccontextmanager
async def reporting_worker() -> AsyncIterator[str]:
    """Its address."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def _run() -> None:
    done = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with ScriptedWorker(NAME, ROLE) as worker:
        print(worker.address, flush=True)
        while not done.done():
            worker.say(LoadReport(ROLE, available_blocks=100))
            await asyncio.wait({done}, timeout=INTERVAL_S)


if __name__ == "__main__":
    asyncio.run(_run())
