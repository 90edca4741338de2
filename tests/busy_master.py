"""`python -m tests.busy_master PORT SECONDS`: a master whose loop stands still for so long, and then asks for work."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from master.workers.access import PLAIN
from master.workers.session_call import SessionCall, session_call
from protos.sampling_messages import SamplingParams
from protos.session_identity import PROTOCOL
from protos.session_messages import Hello, Stage, Start, Step, Welcome

LIMIT_S = 20.0
VERSION = "1"
START = Start(1, "req-1", Stage.WHOLE, (1, 2, 3), SamplingParams(max_tokens=2, temperature=0.0))


@contextlib.asynccontextmanager
async def busy_master(port: int, busy_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """It prints "connected" and, once it was served, "served"."""
    command = (sys.executable, "-m", __name__, str(port), str(busy_s))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def _run(port: str, busy_s: float) -> None:
    async with session_call(f"127.0.0.1:{port}", PLAIN) as call:
        await call.write(Hello("busy", PROTOCOL, VERSION, b"nonce"), LIMIT_S)
        assert isinstance(await call.read(LIMIT_S), Welcome)
        print("connected", flush=True)
        time.sleep(busy_s)  # noqa: ASYNC251  the fault
        await call.write(START, LIMIT_S)
        while not await _has_ended(call):
            pass
        print("served", flush=True)


async def _has_ended(call: SessionCall) -> bool:
    message = await call.read(LIMIT_S)
    assert message is not None
    return isinstance(message, Step) and any(update.ended for update in message.updates)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], float(sys.argv[2])))
