"""The registry says who exists, the sessions say who is there: a real registry and scripted workers."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from master.workers.leg import Leg
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_messages import LegUpdate, Role, Stage, Standing, Start
from registry.embedded.server import EmbeddedEtcd
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import InstanceRecord, encode_record, record_key, workers_prefix
from registry.watcher import PrefixWatcher
from tests.scripted_worker import MODEL, Fleet, ScriptedWorker, finished, soon

CLUSTER = "test"
USED = Standing()


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

    def address_of(self, name: str) -> str | None:
        session = self.fleet.workers.session(name)
        return None if session is None else session.address

    def incarnation_of(self, name: str) -> int | None:
        record = self.fleet.workers.record(name)
        return None if record is None else record.incarnation

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
        await soon(lambda: followed.address_of("mix-0") == new.address)
        await followed.until_usable("mix-0")
        await soon(lambda: old.standings == [USED, Standing("superseded by incarnation 8")])
        await soon(lambda: new.standings == [USED])


async def test_what_runs_on_a_life_that_is_superseded_ends_there(followed: Followed) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as old, ScriptedWorker("mix-0", Role.MIX) as new:
        await followed.put(old)
        await followed.until_usable("mix-0")
        session, updates = followed.fleet.workers.session("mix-0"), list[LegUpdate]()
        assert session is not None
        leg = session.begin(Start(1, "req-1", Stage.WHOLE, (1,), SamplingParams()), partial(_note, updates), 1)
        start = await old.hear(Start)
        await followed.put(new, incarnation=8)
        await soon(lambda: followed.address_of("mix-0") == new.address)
        assert followed.fleet.workers.legs_of("req-1") == [leg]
        old.emits(start, 0, 5, finish=FinishReason.STOP)
        await soon(lambda: [update.failure for update in updates] == [None])
        await soon(lambda: session.name not in {leg.worker for leg in followed.fleet.workers.legs_of("req-1")})


async def test_an_overwritten_key_does_not_hurt_a_healthy_session(followed: Followed) -> None:
    """R29: somebody else's record is tried beside it, and goes as it came."""
    async with ScriptedWorker("mix-0", Role.MIX) as worker, ScriptedWorker("mix-1", Role.MIX) as other:
        await followed.put(worker)
        await followed.until_usable("mix-0")
        await followed.put(worker, incarnation=99, address=other.address)
        await followed.put(other)
        await followed.until_usable("mix-0", "mix-1")
        await soon(lambda: Standing("mix-1 has its address") in other.standings)
        assert followed.fleet.usable == {"mix-0", "mix-1"}
        await followed.put(worker, incarnation=100)
        await followed.remove(other)
        await soon(lambda: followed.incarnation_of("mix-0") == 100)
        assert (followed.address_of("mix-0"), worker.num_sessions) == (worker.address, 1)


async def test_an_older_record_is_compared_again_when_the_newer_life_goes(followed: Followed) -> None:
    """R38"""
    async with ScriptedWorker("mix-0", Role.MIX) as new, ScriptedWorker("mix-0", Role.MIX) as old:
        await followed.put(new, incarnation=8)
        await followed.until_usable("mix-0")
        await followed.put(old, incarnation=7)
        await new.die()
        await soon(lambda: followed.address_of("mix-0") == old.address)
        await followed.until_usable("mix-0")


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


OTHER = dataclasses.replace(MODEL, weights_digest="77")


async def test_a_worker_of_other_weights_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """R7: until it is of the many; what began on the others may go on there."""
    async with (
        ScriptedWorker("mix-0", Role.MIX) as mix,
        ScriptedWorker("mix-1", Role.MIX, model=OTHER) as stranger,
        ScriptedWorker("mix-2", Role.MIX, model=OTHER) as another,
        Fleet() as fleet,
    ):
        await fleet.join(mix)
        fleet.workers.add_static(stranger.address)
        told = Standing(f"it serves {OTHER.identity}, and this cluster {MODEL.identity}")
        await soon(lambda: stranger.standings == [told])
        assert fleet.usable == {mix.address}
        assert [view.name for view in fleet.workers.views(OTHER.identity)] == [stranger.address]
        session = fleet.workers.session(stranger.address)
        assert session is not None
        assert (session.shown_state, session.refusal) == ("not used", told.refusal)
        await fleet.join(another)
        await soon(lambda: stranger.standings == [told, USED])
        assert fleet.usable == {stranger.address, another.address}
        assert [view.name for view in fleet.workers.views(MODEL.identity)] == [mix.address]
        lines = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
        assert len(lines) == 2


async def test_a_worker_that_is_away_for_a_moment_still_counts() -> None:
    """R7: else a stranger would take over whenever a worker restarts."""
    async with (
        ScriptedWorker("mix-0", Role.MIX) as mix,
        ScriptedWorker("mix-1", Role.MIX, model=OTHER) as stranger,
        Fleet() as fleet,
    ):
        await fleet.join(mix)
        fleet.workers.add_static(stranger.address)
        await soon(lambda: stranger.standings != [])
        await mix.die()
        await fleet.until(lambda: fleet.usable == set())
        async with mix.successor():
            await fleet.until(lambda: fleet.usable == {mix.address})
        assert len(stranger.standings) == 1


async def test_what_a_worker_can_hold_outlasts_its_restart() -> None:
    """R8, R23: a request that only the largest could take is no mistake while that one is away."""
    async with (
        ScriptedWorker("mix-0", Role.MIX, num_blocks=10) as small,
        ScriptedWorker("mix-1", Role.MIX, num_blocks=500) as large,
        Fleet() as fleet,
    ):
        await fleet.join(small, large)
        await fleet.leave(large)
        assert fleet.usable == {small.address}
        assert {view.num_blocks for view in fleet.workers.known_views()} == {10, 500}


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
