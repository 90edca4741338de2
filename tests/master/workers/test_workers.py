"""The registry says who exists, the sessions say who is there: a real registry and scripted workers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from master.workers.session import Leg
from protos.sampling_messages import SamplingParams
from protos.session_messages import LegUpdate, Role, Stage, Start
from registry.embedded.server import EmbeddedEtcd
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import InstanceRecord, encode_record, record_key, workers_prefix
from registry.watcher import PrefixWatcher
from tests.scripted_worker import MODEL, Fleet, ScriptedWorker, finished, soon

CLUSTER = "test"


@dataclass(frozen=True)
class Followed:
    """A fleet that follows a registry, and the registry."""

    fleet: Fleet
    client: EtcdClient

    async def put(
        self, worker: ScriptedWorker, *, incarnation: int = 7, draining: bool = False, address: str | None = None
    ) -> None:
        record = InstanceRecord(
            instance=worker.name,
            role=worker.role,
            rpc_address=worker.address if address is None else address,
            transfer_address="127.0.0.1:1",
            http_address="127.0.0.1:2",
            model=MODEL,
            incarnation=incarnation,
            layout_fingerprint="00",
            block_size=4,
            num_blocks=100,
            max_context=1000,
            max_num_seqs=8,
            vocab_size=512,
            draining=draining,
            host="host",
            pid=1,
            version="0",
        )
        await self.client.put(record_key(CLUSTER, record), encode_record(record))

    async def remove(self, worker: ScriptedWorker) -> None:
        await self.client.delete(f"{workers_prefix(CLUSTER)}{worker.name}")

    async def until_usable(self, *names: str) -> None:
        await self.fleet.until(lambda: self.fleet.usable == set(names))

    @property
    def known(self) -> set[str]:
        return {session.name for session in self.fleet.workers.sessions}


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    async with (
        EmbeddedEtcd() as etcd,
        EtcdClient(EtcdConfig(endpoints=etcd.address)) as client,
        PrefixWatcher(client, workers_prefix(CLUSTER)) as watcher,
        Fleet() as fleet,
    ):
        following = asyncio.create_task(fleet.workers.follow(watcher))
        yield Followed(fleet, client)
        await finished(following)


async def test_a_registered_worker_is_connected_and_a_dead_one_forgotten(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        await followed.put(worker)
        await followed.until_usable("mix-0")
        record = followed.fleet.workers.record("mix-0")
        assert record is not None
        assert record.rpc_address == worker.address
        await worker.die()
        await followed.until_usable()
        assert followed.known == {"mix-0"}, "it may come back"
        await followed.remove(worker)
        await soon(lambda: followed.known == set())


async def test_a_worker_that_only_the_registry_lost_goes_on_serving(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, ScriptedWorker("mix-1", Role.MIX) as other:
        await followed.put(worker)
        await followed.until_usable("mix-0")
        await followed.remove(worker)
        await followed.put(other)
        await followed.until_usable("mix-0", "mix-1")
        await worker.die()
        await followed.until_usable("mix-1")
        await soon(lambda: followed.known == {"mix-1"})


async def test_a_new_life_at_another_address_replaces_the_old_one(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as old, ScriptedWorker("mix-0", Role.MIX) as new:
        await followed.put(old)
        await followed.until_usable("mix-0")
        await followed.put(new, incarnation=8)
        await soon(lambda: new.num_sessions == 1)
        await followed.until_usable("mix-0")
        session = followed.fleet.workers.session("mix-0")
        assert session is not None
        assert session.address == new.address


async def test_an_older_life_never_replaces_a_newer_one(followed: Followed) -> None:
    async with (
        ScriptedWorker("mix-0", Role.MIX) as new,
        ScriptedWorker("mix-0", Role.MIX) as old,
        ScriptedWorker("mix-1", Role.MIX) as other,
    ):
        await followed.put(new, incarnation=8)
        await followed.until_usable("mix-0")
        await followed.put(old, incarnation=7)
        await followed.put(other)
        await followed.until_usable("mix-0", "mix-1")
        assert old.num_sessions == 0


async def test_a_draining_record_stops_new_work(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        await followed.put(worker)
        await followed.until_usable("mix-0")
        await followed.put(worker, draining=True)
        await followed.until_usable()
        await followed.put(worker)
        await followed.until_usable("mix-0")
        assert worker.num_sessions == 1


async def test_a_record_that_makes_no_sense_hurts_nobody(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        await followed.client.put(f"{workers_prefix(CLUSTER)}bad", b"{")
        await followed.client.put(f"{workers_prefix(CLUSTER)}worse", b'{"instance": 3}')
        await followed.put(worker)
        await followed.until_usable("mix-0")


@pytest.mark.parametrize("address", ["nonsense", "256.256.256.256:1", "[::1", "127.0.0.1:99999", ""])
async def test_an_address_that_makes_no_sense_hurts_nobody(followed: Followed, address: str) -> None:
    async with ScriptedWorker("bad-0", Role.MIX) as bad, ScriptedWorker("mix-0", Role.MIX) as worker:
        await followed.put(bad, address=address)
        await followed.put(worker)
        await followed.until_usable("mix-0")
        await followed.put(bad, incarnation=8)
        await followed.until_usable("bad-0", "mix-0")


async def test_another_worker_on_a_dead_ones_port_is_not_taken_for_it(followed: Followed) -> None:
    """The registry still lists the dead one until its lease ends."""
    async with ScriptedWorker("prefill-0", Role.PREFILL) as worker:
        await followed.put(worker)
        await followed.until_usable("prefill-0")
        port = int(worker.address.rpartition(":")[2])
        await worker.die()
        async with ScriptedWorker("decode-0", Role.DECODE, port=port) as other:
            await followed.put(other)
            await followed.until_usable("decode-0")
            await soon(lambda: other.num_sessions >= 2)
            assert followed.fleet.usable == {"decode-0"}


async def test_workers_listed_by_flag_need_no_registry() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Fleet() as fleet:
        await fleet.join(worker)
        assert fleet.usable == {worker.address}
        assert fleet.workers.record(worker.address) is None
        assert fleet.workers.session("nobody") is None


def _note(updates: list[LegUpdate], _: Leg, update: LegUpdate) -> None:
    updates.append(update)


async def test_closing_while_a_worker_dies_ends_all_sessions(tmp_path: Path) -> None:
    """Whatever the order in which a machine's processes end."""
    for _ in range(20):
        async with ScriptedWorker("mix-0", Role.MIX) as worker, Fleet() as fleet:
            await fleet.join(worker)
            (session,) = fleet.workers.sessions
            updates: list[LegUpdate] = []
            start = Start(1, "req-1", Stage.WHOLE, (1,), SamplingParams())
            session.begin(start, partial(_note, updates), 1)
            dying = asyncio.create_task(worker.die())
            await soon(lambda at=session: not at.is_usable)  # type: ignore[misc]
            await fleet.workers.close()
            assert [update.failure is not None for update in updates] == [True]
            await dying
