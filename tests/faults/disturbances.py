"""What faults do to a cluster. Each function makes one that `Fault.disturb` can be."""

import os
import resource
import signal
from collections.abc import Awaitable, Callable

from tests.faults.scene import Scene

Disturb = Callable[[Scene], Awaitable[None]]

AWAY_S = 5.0  # for how long what comes back is away
BEYOND_LEASE_S = 20.0  # longer than any lease or heartbeat


def kill(*names: str) -> Disturb:
    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.kill(*names)

    return disturb


def kill_and_restart(name: str) -> Disturb:
    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.kill(name)
        await scene.rest(AWAY_S)
        await scene.start(name)

    return disturb


def kill_and_launch(name: str) -> Disturb:
    """As `kill_and_restart`, but nobody waits until it is found."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.kill(name)
        await scene.rest(AWAY_S)
        scene.cluster.workers[name].start()

    return disturb


def stop(*names: str) -> Disturb:
    """They stand still, and never go on."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.signal(signal.SIGSTOP, *names)

    return disturb


def stop_and_continue(name: str, seconds: float) -> Disturb:
    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.signal(signal.SIGSTOP, name)
        await scene.rest(seconds)
        scene.signal(signal.SIGCONT, name)

    return disturb


def restart(*names: str) -> Disturb:
    """One after the other: told to end, and started when it has ended."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        for name in names:
            scene.signal(signal.SIGTERM, name)
            await scene.ended(name)
            await scene.start(name)

    return disturb


def drain(name: str) -> Disturb:
    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.signal(signal.SIGTERM, name)
        await scene.ended(name)

    return disturb


def join(name: str) -> Disturb:
    """A worker comes that had better not be asked for everything."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.cluster.workers[name].start()
        await scene.rest(2 * AWAY_S)

    return disturb


def cut_off(one: str, other: str, *, rejects: bool = False, seconds: float = BEYOND_LEASE_S) -> Disturb:
    """Two hosts can't reach each other for a while."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        await scene.blocking(lambda: scene.hosts.cut(one, other, rejects=rejects))
        await scene.rest(seconds)
        await scene.blocking(lambda: scene.hosts.heal(one, other, rejects=rejects))

    return disturb


def without_etcd(meanwhile: Disturb | None = None, *, keeps_data: bool = True) -> Disturb:
    """etcd is killed, something else happens, and etcd comes back."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.etcd.kill()
        await (meanwhile(scene) if meanwhile is not None else scene.rest(AWAY_S))
        scene.etcd.start(keeps_data=keeps_data)
        await scene.blocking(scene.etcd.wait_until_ready)

    return disturb


def frozen_etcd() -> Disturb:
    async def disturb(scene: Scene) -> None:
        await scene.begun()
        scene.etcd.signal(signal.SIGSTOP)
        await scene.rest(BEYOND_LEASE_S)
        scene.etcd.signal(signal.SIGCONT)

    return disturb


def out_of_descriptors(name: str) -> Disturb:
    """A process may open nothing more for a while."""

    async def disturb(scene: Scene) -> None:
        await scene.begun()
        process_id = scene.cluster.workers[name].pid
        num_open = len(os.listdir(f"/proc/{process_id}/fd"))
        soft, hard = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (num_open, hard))
        await scene.rest(AWAY_S)
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (soft, hard))

    return disturb


def nothing() -> Disturb:
    """What the fault is stands in the flags of its workers."""

    async def disturb(scene: Scene) -> None:
        await scene.load.reached(1.0)

    return disturb
