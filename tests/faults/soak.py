"""Random kills and restarts for minutes: every answer is compared, and the memory of every process is watched."""

import asyncio
import math
import random
import time
from collections import Counter
from pathlib import Path

from tests.cluster import Cluster, Process
from tests.faults.fault import TWO_OF_EACH, Spare
from tests.faults.load import Load
from tests.faults.near_tie import NearTies
from tests.faults.questions import answered, questions
from tests.faults.run import HEARTBEAT, NUM_SHOWN_FAILURES, WORKER_FLAGS, Row

KILL_EVERY_S = 5.0
AWAY_S = (0.0, 4.0)  # before what was killed is started again
WARM_S = 60.0  # memory is compared with what a process has after this
MEMORY_GROWTH = 1.25  # of a process that lives on
MEMORY_SLACK_BYTES = 32 << 20


class Memory:
    """The resident memory of the processes of a cluster. One that was started anew begins anew."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes
        self._first: dict[int, int] = {}  # process id → bytes, once it is warm
        self._born_s: dict[int, float] = {}

    def problems(self) -> list[str]:
        """Processes that have grown beyond measure since they were warm."""
        found = []
        for process in self._processes:
            if not process.is_running:
                continue
            born_s = self._born_s.setdefault(process.pid, time.monotonic())
            num_bytes = _resident_bytes(process.pid)
            if time.monotonic() - born_s < WARM_S:
                continue
            first = self._first.setdefault(process.pid, num_bytes)
            if num_bytes > first * MEMORY_GROWTH + MEMORY_SLACK_BYTES:
                found.append(f"{process.name} grew from {first >> 20} to {num_bytes >> 20} MiB")
        return found


def soak(model: Path, duration_s: float, *, num_clients: int, seed: int) -> Row:
    """Two PREFILL and two DECODE workers; one of them is killed every few seconds and comes back soon after."""
    with Cluster(model, TWO_OF_EACH, worker_flags=WORKER_FLAGS, master_flags=(HEARTBEAT,)) as cluster:
        asked = answered(cluster, questions())
        load = Load(lambda: cluster.grpc_address, asked, math.inf, num_clients)
        started_s = time.monotonic()
        problems = asyncio.run(_run(cluster, load, duration_s, random.Random(seed)))
        cluster.wait_until_connected()
        cluster.check_no_leak()
    near_ties = NearTies(model)
    explained = sum(near_ties.explains(difference) for difference in load.outcomes.differences)
    return Row(
        fault=f"one worker killed every {KILL_EVERY_S:g} s (R4)",
        spare=Spare.YES.value,
        layout=" + ".join(TWO_OF_EACH),
        num_requests=load.outcomes.num_requests,
        num_failed=len(load.outcomes.failures),
        num_different=len(load.outcomes.differences) - explained,
        num_near_ties=explained,
        most_failed=0,
        duration_s=round(time.monotonic() - started_s, 1),
        failures=[text for text, _ in Counter(load.outcomes.failures).most_common(NUM_SHOWN_FAILURES)],
        problems=problems,
    )


async def _run(cluster: Cluster, load: Load, duration_s: float, choose: random.Random) -> list[str]:
    memory = Memory([cluster.master, *cluster.workers.values()])
    problems: dict[str, str] = {}  # the last of each process
    end_s = time.monotonic() + duration_s
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(load.run())
        while time.monotonic() < end_s:
            await _kill_one(cluster, choose)
            problems |= {problem.split()[0]: problem for problem in memory.problems()}
        load.finish()
        await running
    return list(problems.values())


async def _kill_one(cluster: Cluster, choose: random.Random) -> None:
    """Takes about KILL_EVERY_S."""
    worker = choose.choice(list(cluster.workers.values()))
    away_s = choose.uniform(*AWAY_S)
    worker.kill()
    await asyncio.sleep(away_s)
    worker.start()
    await asyncio.sleep(KILL_EVERY_S - away_s)


def _resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10
