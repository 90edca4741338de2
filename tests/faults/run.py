"""Runs one fault against a cluster of real processes, and says what its clients noticed."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import Cluster, Host
from tests.etcd_process import EtcdProcess
from tests.faults.balancer import Balancer
from tests.faults.fault import Fault, Roles, Spare
from tests.faults.hosts import Hosts
from tests.faults.load import Load, Outcomes
from tests.faults.near_tie import NearTies
from tests.faults.questions import Question, answered, questions
from tests.faults.scene import Scene

HEARTBEAT = "--heartbeat_timeout_s=3"
WORKER_FLAGS = (HEARTBEAT, "--num_blocks=2000", "--max_tokens_per_step=128")
NUM_SHOWN_FAILURES = 3


@dataclass(frozen=True)
class Row:
    """One line of the table. `problems` are what must never be, whatever the fault, such as a leak."""

    fault: str
    spare: str
    layout: str
    num_requests: int
    num_failed: int
    num_different: int
    num_near_ties: int
    most_failed: int | None
    duration_s: float
    failures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether the promise was kept."""
        within = self.most_failed is None or self.num_failed <= self.most_failed
        return within and self.num_different == 0 and not self.problems


class FaultRun:
    """Every fault of a table against the same model, with the same questions."""

    def __init__(
        self,
        model: Path,
        other_model: Path,
        *,
        num_requests: int,
        num_clients: int,
        worker_flags: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._other_model = other_model
        self._num_requests = num_requests
        self._num_clients = num_clients
        self._worker_flags = (*WORKER_FLAGS, *worker_flags)
        self._near_ties = NearTies(model)
        with Cluster(model, ["MIX"], worker_flags=self._worker_flags) as cluster:
            self._questions: list[Question] = answered(cluster, questions())

    def run(self, fault: Fault, spare: Spare) -> Row:
        roles = fault.layouts[spare]
        started_s = time.monotonic()
        problems: list[str] = []
        outcomes = Outcomes()
        try:
            with contextlib.ExitStack() as stack:
                scene = self._scene(fault, roles, stack)
                outcomes = scene.load.outcomes
                asyncio.run(_run(scene, fault))
                scene.wake()
                _check_afterwards(scene, fault)
        except AssertionError as error:
            problems.append(str(error).splitlines()[0])
        near_ties = [difference for difference in outcomes.differences if self._near_ties.explains(difference)]
        return Row(
            fault=fault.name,
            spare=spare.value,
            layout=" + ".join(roles),
            num_requests=outcomes.num_requests,
            num_failed=len(outcomes.failures),
            num_different=len(outcomes.differences) - len(near_ties),
            num_near_ties=len(near_ties),
            most_failed=fault.most_failed.get(spare),
            duration_s=round(time.monotonic() - started_s, 1),
            failures=[text for text, _ in Counter(outcomes.failures).most_common(NUM_SHOWN_FAILURES)],
            problems=problems,
        )

    def _scene(self, fault: Fault, roles: Roles, stack: contextlib.ExitStack) -> Scene:
        """What it starts ends with `stack`."""
        names = worker_names(roles)
        hosts = stack.enter_context(Hosts(names)) if fault.needs_hosts else None
        etcd = stack.enter_context(EtcdProcess()) if fault.needs_etcd else None
        if etcd is not None:
            etcd.wait_until_ready()
        others = {name: (f"--model={self._other_model}",) for name in fault.other_model}
        cluster = stack.enter_context(
            Cluster(
                self._model,
                roles,
                worker_flags=self._worker_flags,
                flags_of={**fault.flags_of, **others},
                master_flags=(HEARTBEAT, *fault.master_flags),
                etcd_address=None if etcd is None else etcd.address,
                absent=fault.absent,
                hosts=None if hosts is None else _places(hosts),
            )
        )
        cluster.wait_until_connected(*(name for name in names if name not in fault.absent))
        addresses = [cluster.grpc_address, *(cluster.add_master() for _ in range(fault.num_masters - 1))]
        balancer = stack.enter_context(Balancer([cluster.master, *cluster.other_masters], addresses))
        load = Load(balancer.address, self._questions, self._num_requests, self._num_clients)
        return Scene(cluster, load, etcd, hosts)


def _check_afterwards(scene: Scene, fault: Fault) -> None:
    """Who still runs is used again, and holds nothing. Raises AssertionError."""
    workers = scene.cluster.workers
    ours = [name for name, worker in workers.items() if worker.is_running and name not in fault.absent]
    if scene.cluster.master.is_running:
        scene.cluster.wait_until_connected(*ours)
        scene.cluster.check_no_leak(but=fault.absent)


def worker_names(roles: Roles) -> list[str]:
    """What `Cluster` calls them."""
    return [f"{role.lower()}-{roles[:place].count(role)}" for place, role in enumerate(roles)]


def _places(hosts: Hosts) -> dict[str, Host]:
    return {"master": hosts.master, **hosts.of}


async def _run(scene: Scene, fault: Fault) -> None:
    loading = asyncio.create_task(scene.load.run())
    try:
        await fault.disturb(scene)
        await loading
    finally:
        loading.cancel()
