"""Hosts of a cluster on one machine: network namespaces on one bridge, between which connections can be cut.

It needs root and iproute2's `ip`. Everything it makes carries this process's number, and is removed on leaving.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.cluster import Host

NETWORK = "10.213.{}.{}"  # of the namespaces alone; nothing outside them is reached


def can_have_hosts() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Hosts:
    """A context manager. `master` is on the bridge, each name of `names` in a namespace of its own."""

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = f"pd{os.getpid() % 100_000}"
        subnet = os.getpid() % 250
        self.master = Host(NETWORK.format(subnet, 1))
        self.of = {
            name: Host(NETWORK.format(subnet, number), ("ip", "netns", "exec", self._space(number)))
            for number, name in enumerate(names, start=2)
        }

    def cut(self, one: str, other: str, *, rejects: bool = False) -> None:
        """What `one` sends to `other` is dropped; or it `rejects`: both are told at once that there is no way.

        `other` may be the master. Who connects to a host whose answers are dropped waits, as behind a firewall.
        """
        kind = "unreachable" if rejects else "blackhole"
        for here, there in self._directions(one, other, both=rejects):
            _ip("-n", here, "route", "add", kind, there)

    def heal(self, one: str, other: str, *, rejects: bool = False) -> None:
        """Undoes `cut`."""
        for here, there in self._directions(one, other, both=rejects):
            _ip("-n", here, "route", "del", "unreachable" if rejects else "blackhole", there)

    def _directions(self, one: str, other: str, *, both: bool) -> list[tuple[str, str]]:
        """(namespace that sends, address sent to)."""
        pairs = [(one, other), (other, one)] if both else [(one, other)]
        return [(self._space_of(here), self._address_of(there)) for here, there in pairs if here in self.of]

    def _address_of(self, name: str) -> str:
        return self.of[name].address if name in self.of else self.master.address

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.master.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, host in enumerate(self.of.values(), start=2):
                self._add(number, host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def _bridge(self) -> str:
        return f"{self._tag}br"

    def _space(self, number: int) -> str:
        return f"{self._tag}-{number}"

    def _outer(self, number: int) -> str:
        """The end of a namespace's cable that is on the bridge."""
        return f"{self._tag}v{number}"

    def _space_of(self, name: str) -> str:
        return self.of[name].enter[-1]

    def _add(self, number: int, host: Host) -> None:
        space, outer = self._space(number), self._outer(number)
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", space, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for number in range(2, 2 + len(self.of)):
            _ip("link", "del", self._outer(number), check=False)  # its namespace may live on for a while
            _ip("netns", "del", self._space(number), check=False)
        _ip("link", "del", self._bridge, check=False)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True)
