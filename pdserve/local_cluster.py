"""A whole cluster on this machine: a master with its built-in registry, and workers."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.address import join_host_port
from config.cores import usable_cores
from pdserve.child_process import ChildProcess
from pdserve.free_port import free_port
from pdserve.readiness import is_serving

HOST = "127.0.0.1"
RESTART_PAUSE_S = 1.0
EXIT_CANNOT_START = 2  # after one line that says why


class ClusterFailed(Exception):
    """A process ended that must not, or the cluster did not become ready; the message has the end of its log.

    `can_heal` is false where trying again would end the same way.
    """

    def __init__(self, message: str, *, can_heal: bool = True) -> None:
        super().__init__(message)
        self.can_heal = can_heal


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What to start. Port 0 picks a free one; `worker_flags` go to every worker, `master_flags` to the master."""

    model: Path
    num_prefill: int = 1
    num_decode: int = 1
    num_mix: int = 0
    http_port: int = 0
    rpc_port: int = 0
    etcd_port: int = 0
    served_model_name: str | None = None
    worker_flags: tuple[str, ...] = ()
    master_flags: tuple[str, ...] = ()
    ready_timeout_s: float = 120.0

    @property
    def roles(self) -> list[tuple[str, str]]:
        """(name, role) of every worker."""
        counts = (("PREFILL", self.num_prefill), ("DECODE", self.num_decode), ("MIX", self.num_mix))
        return [(f"{role.lower()}-{number}", role) for role, count in counts for number in range(count)]


class LocalCluster:
    """An async context manager: inside it the cluster is ready. Everything it started ends with it.

    A worker that dies is started again; its streams have gone on elsewhere. If the master dies, `failed` says so.
    """

    def __init__(self, plan: LocalPlan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._http_port, self._rpc_port, self._etcd_port = (
            port or free_port() for port in (plan.http_port, plan.rpc_port, plan.etcd_port)
        )
        self._stack = contextlib.AsyncExitStack()
        self._watching: list[asyncio.Task[None]] = []
        self._logs = Path(".")
        self._is_ready = False  # until then a worker that ends would end again
        self._failure: asyncio.Future[ClusterFailed] = asyncio.get_running_loop().create_future()
        self.master: ChildProcess | None = None
        self.workers: dict[str, ChildProcess] = {}

    @property
    def http_url(self) -> str:
        return f"http://{join_host_port(HOST, self._http_port)}"

    @property
    def grpc_address(self) -> str:
        return join_host_port(HOST, self._rpc_port)

    @property
    def etcd_address(self) -> str:
        return join_host_port(HOST, self._etcd_port)

    async def __aenter__(self) -> "LocalCluster":
        try:
            self._logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pdserve-logs-")))
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._end()

    async def _end(self) -> None:
        """Nobody may start again what is told to end."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._stack.aclose()

    async def failed(self) -> ClusterFailed:
        """Returns when the cluster can't go on."""
        return await asyncio.shield(self._failure)

    async def _start(self) -> None:
        plan = self._plan
        flags = [
            f"--tokenizer_path={plan.model}",
            f"--http_server_port={self._http_port}",
            f"--rpc_server_port={self._rpc_port}",
            f"--builtin_etcd_port={self._etcd_port}",
            "--lame_duck_s=0",  # no balancer stands before it
        ]
        if plan.served_model_name is not None:
            flags.append(f"--served_model_name={plan.served_model_name}")
        flags += plan.master_flags
        self._tell(f"starting the master and {len(plan.roles)} workers: {', '.join(name for name, _ in plan.roles)}")
        self.master = await self._launch("master", "master.main", flags)
        threads = max(1, usable_cores() // max(1, len(plan.roles)))
        watchers = [self._watch_master(self.master)]
        for name, role in plan.roles:
            flags = [
                f"--model={plan.model}",
                f"--instance_role={role}",
                f"--instance_name={name}",
                f"--etcd_addr={self.etcd_address}",
                f"--num_threads={threads}",
                "--port=0",
                "--disagg_pd_port=0",
                "--transfer_listen_port=0",
                *plan.worker_flags,
            ]
            self.workers[name] = await self._launch(name, "worker.main", flags)
            watchers.append(self._keep_alive(name, flags))
        self._watching = [asyncio.create_task(watcher) for watcher in watchers]
        await self._wait_until_ready()
        self._is_ready = True

    async def _launch(self, name: str, module: str, flags: Sequence[str]) -> ChildProcess:
        child = ChildProcess(name, module, flags, self._logs / f"{name}.log")
        await child.start(os.environ)
        self._stack.push_async_callback(child.stop)
        return child

    async def _watch_master(self, master: ChildProcess) -> None:
        status = await master.exited()
        if status == EXIT_CANNOT_START:
            self._fail(ClusterFailed(f"the master: {master.last_line()}", can_heal=False))
        else:
            self._fail(ClusterFailed(f"the master ended with status {status}:\n{master.log_tail()}"))

    async def _keep_alive(self, name: str, flags: Sequence[str]) -> None:
        while True:
            worker = self.workers[name]
            status = await worker.exited()
            if status == EXIT_CANNOT_START:
                self._fail(ClusterFailed(f"worker {name}: {worker.last_line()}", can_heal=False))
                return
            if not self._is_ready:
                self._fail(ClusterFailed(f"worker {name} ended with status {status}:\n{worker.log_tail()}"))
                return
            self._tell(f"worker {name} ended with status {status}, starting it again")
            await asyncio.sleep(RESTART_PAUSE_S)
            self.workers[name] = await self._launch(name, "worker.main", flags)

    def _fail(self, failure: ClusterFailed) -> None:
        if not self._failure.done():
            self._failure.set_result(failure)

    async def _wait_until_ready(self) -> None:
        """Raises ClusterFailed."""
        self._tell("loading the model")
        ready = asyncio.create_task(is_serving(self.grpc_address))
        try:
            waited: set[asyncio.Future[None] | asyncio.Future[ClusterFailed]] = {ready, self._failure}
            await asyncio.wait(waited, timeout=self._plan.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                raise self._failure.result()
            if not ready.done():
                logs = "\n".join(child.log_tail() for child in [self.master, *self.workers.values()] if child)
                raise ClusterFailed(f"not ready within {self._plan.ready_timeout_s:g} s:\n{logs}")
            await ready
        finally:
            ready.cancel()
