"""The phases of a process, with a scripted one in the real loop."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from config.flags import FlagError
from serving.process_life import LeaveTimes, bind, live
from serving.stop_signal import StopSignal

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Scripted:
    """Writes down its phases; `signals` are raised on entry of a phase, and `hangs` is the phase that never ends."""

    def __init__(self, signals: tuple[str, ...] = (), hangs: str = "") -> None:
        self.phases: list[str] = []
        self._signals = signals
        self._hangs = hangs

    async def _enter(self, phase: str) -> None:
        self.phases.append(phase)
        if phase in self._signals:
            os.kill(os.getpid(), signal.SIGTERM)
        if phase == self._hangs:
            await asyncio.Event().wait()

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        stack.callback(self.phases.append, "closed")
        await self._enter("start")

    async def failed(self) -> None:
        await self._enter("serve")
        await asyncio.Event().wait()

    def leave(self) -> None:
        self.phases.append("leave")
        if "leave" in self._signals:
            os.kill(os.getpid(), signal.SIGTERM)

    async def drained(self) -> None:
        await self._enter("drain")


async def run(process: Scripted, times: LeaveTimes) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        await live(process, StopSignal(), times)
    return process.phases


async def test_a_process_that_is_told_to_end_leaves_drains_and_closes() -> None:
    """R24"""
    phases = await run(Scripted(signals=("serve",)), LeaveTimes(drain_s=LIMIT_S, lame_duck_s=0.01))
    assert phases == ["start", "serve", "leave", "drain", "closed"]


async def test_draining_has_a_limit() -> None:
    phases = await run(Scripted(signals=("serve",), hangs="drain"), LeaveTimes(drain_s=0.01))
    assert phases == ["start", "serve", "leave", "drain", "closed"]


@pytest.mark.parametrize("phase", ["leave", "drain"])
async def test_a_second_signal_leaves_at_once(phase: str) -> None:
    """R30: neither the lame duck's time nor the drain is waited for."""
    times = LeaveTimes(drain_s=10 * LIMIT_S, lame_duck_s=10 * LIMIT_S if phase == "leave" else 0.0)
    phases = await run(Scripted(signals=("serve", phase), hangs="drain"), times)
    assert phases[-1] == "closed"


async def test_a_process_that_is_still_starting_can_be_told_to_end() -> None:
    phases = await run(Scripted(signals=("start",), hangs="start"), LeaveTimes(drain_s=LIMIT_S))
    assert phases == ["start", "closed"]


async def test_what_ends_the_process_is_raised() -> None:
    class Failing(Scripted):
        async def failed(self) -> None:
            raise RuntimeError("it died")

    process = Failing()
    with pytest.raises(RuntimeError, match="it died"):
        await run(process, LeaveTimes(drain_s=LIMIT_S))
    assert process.phases == ["start", "closed"]


async def test_a_port_that_cannot_be_had_names_its_flag() -> None:
    async def start() -> None:
        raise OSError(98, "127.0.0.1:7: Address already in use")

    with pytest.raises(FlagError, match="in use") as refused:
        await bind("port", 7, start())
    assert refused.value.flag == "port"


HANGS_IN = {
    "the loop": "while True: pass",
    "a thread of the pool": "await asyncio.gather(live(P(), stop, times), asyncio.to_thread(time.sleep, 1000))",
    "a thread that its end waits for": "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "    await live(P(), stop, times)",
}
PROGRAM = """
import asyncio, threading, time
from serving import process_life, stop_signal
from serving.process_life import LeaveTimes, live
from serving.stop_signal import StopSignal

process_life.CLOSE_S = 0.2
class P:
    async def start(self, stack): print("serving", flush=True)
    async def failed(self): await asyncio.Event().wait()
    def leave(self): pass
    async def drained(self): pass

async def main():
    times = LeaveTimes(drain_s=0.2)
    stop = StopSignal(times.limit_s)
    print("here", flush=True)
    HANG

asyncio.run(main())
"""


@pytest.mark.parametrize("where", HANGS_IN)
def test_a_process_that_hangs_is_gone_within_its_limits(where: str) -> None:
    """R30: whatever thread is stuck, and stderr says where."""
    program = PROGRAM.replace("HANG", HANGS_IN[where])
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    if where != "the loop":
        assert process.stdout.readline() == "serving\n"
    process.terminate()
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "most recent call first" in said
