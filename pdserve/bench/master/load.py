"""`python -m pdserve.bench.master.load PORT PID JSON`: puts load on a master and measures it, in a process of its own.

JSON is a `LoadPlan`; what comes out is a `MasterReport`, as JSON too. `pid` is the master's.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import uvloop

from pdserve.bench.master.http_load import ChatLoad, Connection
from pdserve.bench.master.process_use import ProcessUse

HOST = "127.0.0.1"
PATIENCE_S = 60.0
HELD_PACE_MS = 3_600_000  # the second token never comes
WARM_UP = ChatLoad(max_tokens=16, pace_ms=0, is_streamed=True)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    streams: int
    tokens: int
    rounds: int
    pace_ms: int
    chats: int
    chat_clients: int
    chat_tokens: int
    open_streams: int


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Times in milliseconds; `itl_p99_ms` is between parts of a stream that had events."""

    streams: int
    us_per_token: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float


@dataclass(frozen=True, slots=True)
class MasterReport:
    """CPU time is the master's own, all of its threads together."""

    saturated: StreamTimes
    paced: StreamTimes
    paced_few: StreamTimes
    chats_per_s: float
    us_per_chat: float
    kib_per_open_stream: float


class MasterLoad:
    def __init__(self, port: int, master: ProcessUse, plan: LoadPlan) -> None:
        self._port = port
        self._host = f"{HOST}:{port}"
        self._master = master
        self._plan = plan

    async def run(self) -> MasterReport:
        plan = self._plan
        await self._streams(plan.streams, WARM_UP, rounds=4)
        await self._chats(self._chat_load(), num=plan.chats // 4)
        at_once = ChatLoad(plan.tokens, pace_ms=0, is_streamed=True)
        paced = ChatLoad(plan.tokens, plan.pace_ms, is_streamed=True)
        saturated = await self._streams(plan.streams, at_once, plan.rounds)
        many = await self._streams(plan.streams, paced, plan.rounds)
        few = await self._streams(plan.chat_clients, paced, plan.rounds)
        chats_per_s, us_per_chat = await self._chats(self._chat_load(), plan.chats)
        return MasterReport(saturated, many, few, chats_per_s, us_per_chat, await self._memory())

    def _chat_load(self) -> ChatLoad:
        return ChatLoad(self._plan.chat_tokens, pace_ms=0, is_streamed=False)

    async def _streams(self, num_streams: int, load: ChatLoad, rounds: int) -> StreamTimes:
        """Each round begins with all streams at once."""
        request = load.request(self._host)
        connections = await self._connect(num_streams)
        ttfts_s: list[float] = []
        gaps_s: list[float] = []
        began_s = self._master.cpu_s()
        for _ in range(rounds):
            asked_s = time.monotonic()
            await asyncio.wait_for(asyncio.gather(*(one.ask(request) for one in connections)), PATIENCE_S)
            for one in connections:
                ttfts_s.append(one.arrivals_s[0] - asked_s)
                gaps_s += (later - earlier for earlier, later in itertools.pairwise(one.arrivals_s))
        cpu_s = self._master.cpu_s() - began_s
        _close(connections)
        us_per_token = cpu_s * 1e6 / (rounds * num_streams * load.max_tokens)
        ttfts, gaps = (_percentiles_ms(found) for found in (ttfts_s, gaps_s))
        return StreamTimes(num_streams, us_per_token, *ttfts, *gaps)

    async def _chats(self, load: ChatLoad, num: int) -> tuple[float, float]:
        """How many a second, and the microseconds of CPU for each."""
        request = load.request(self._host)
        connections = await self._connect(self._plan.chat_clients)
        left = iter(range(num))

        async def work(one: Connection) -> None:
            for _ in left:
                await one.ask(request)

        began_s, began_cpu_s = time.monotonic(), self._master.cpu_s()
        await asyncio.wait_for(asyncio.gather(*(work(one) for one in connections)), PATIENCE_S)
        took_s, cpu_s = time.monotonic() - began_s, self._master.cpu_s() - began_cpu_s
        _close(connections)
        return num / took_s, cpu_s * 1e6 / num

    async def _memory(self) -> float:
        load = ChatLoad(self._plan.tokens, HELD_PACE_MS, is_streamed=True)
        request = load.request(self._host)
        before = self._master.resident_bytes()
        connections = await self._connect(self._plan.open_streams)
        for one in connections:
            one.ask(request)
        await asyncio.wait_for(asyncio.gather(*(one.first_event() for one in connections)), PATIENCE_S)
        grown = self._master.resident_bytes() - before
        _close(connections)
        return grown / 1024 / len(connections)

    async def _connect(self, num: int) -> list[Connection]:
        loop = asyncio.get_running_loop()
        return [(await loop.create_connection(Connection, HOST, self._port))[1] for _ in range(num)]


def _close(connections: Sequence[Connection]) -> None:
    for one in connections:
        one.close()


def _percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    ordered = sorted(seconds) or [0.0]
    return ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3


def main() -> None:
    port, pid, plan = sys.argv[1:]
    load = MasterLoad(int(port), ProcessUse(int(pid)), msgspec.json.decode(plan, type=LoadPlan))
    print(msgspec.json.encode(uvloop.run(load.run())).decode())


if __name__ == "__main__":
    main()
