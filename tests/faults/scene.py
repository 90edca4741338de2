"""A cluster under load, as a fault finds it, and what may be done to it."""

import asyncio
import signal
from collections.abc import Callable
from typing import TypeVar

from tests.cluster import Cluster, Process
from tests.etcd_process import EtcdProcess
from tests.faults.hosts import Hosts
from tests.faults.load import Load

T = TypeVar("T")


class Scene:
    """`etcd` and `hosts` are there where a fault asks for them."""

    def __init__(self, cluster: Cluster, load: Load, etcd: EtcdProcess | None, hosts: Hosts | None) -> None:
        self.cluster = cluster
        self.load = load
        self._etcd = etcd
        self._hosts = hosts

    @property
    def etcd(self) -> EtcdProcess:
        assert self._etcd is not None, "the fault does not ask for a real etcd"
        return self._etcd

    @property
    def hosts(self) -> Hosts:
        assert self._hosts is not None, "the fault does not ask for hosts"
        return self._hosts

    async def begun(self) -> None:
        """Returns when the load has run for a while."""
        await self.load.reached(0.2)

    async def rest(self, seconds: float) -> None:
        """Lets the fault last."""
        await asyncio.sleep(seconds)

    def wake(self) -> None:
        """What still stands still goes on."""
        for process in (self.cluster.master, *self.cluster.workers.values()):
            if process.is_running:
                process.signal(signal.SIGCONT)

    def kill(self, *names: str) -> None:
        for name in names:
            self._process(name).kill()

    def signal(self, number: signal.Signals, *names: str) -> None:
        for name in names:
            self._process(name).signal(number)

    async def ended(self, name: str) -> int:
        """The exit status of a worker, or the master, that was told to end."""
        return await self.blocking(self._process(name).wait)

    async def start(self, *names: str) -> None:
        """Returns when the master is connected to all of them."""
        for name in names:
            self._process(name).start()
        await self.blocking(lambda: self.cluster.wait_until_connected(*names))

    async def blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    def _process(self, name: str) -> Process:
        return self.cluster.master if name == "master" else self.cluster.workers[name]
