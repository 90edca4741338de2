"""Registrations against the built-in and a real etcd."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from protos.session_messages import Role
from registry.errors import NewerIncarnation
from registry.etcd.client import EtcdClient
from registry.instance import InstanceRecord, MasterRecord, decode_instance, encode_record, workers_prefix
from registry.registration import Registration
from registry.watcher import Added, PrefixWatcher, Removed, Updated

if TYPE_CHECKING:
    from tests.registry.conftest import Etcd, Link, NextChange, RealServer

KEY = "/pdserve/test/workers/w0"
LIMIT_S = 20.0

MakeRecord = Callable[..., InstanceRecord]
MakeRegistration = Callable[..., Registration]


async def stored_record(client: EtcdClient) -> InstanceRecord:
    stored = await client.get(KEY)
    assert stored is not None
    return decode_instance(stored.value)


async def test_a_worker_comes_changes_and_goes(
    client: EtcdClient,
    make_record: MakeRecord,
    make_registration: MakeRegistration,
    make_watcher: Callable[..., PrefixWatcher],
    next_change: NextChange,
) -> None:
    watcher = make_watcher(client, workers_prefix("test"))
    record = make_record(incarnation=5)
    registration = make_registration(client, record)
    added = await next_change(watcher)
    assert isinstance(added, Added) and added.key == KEY and decode_instance(added.value) == record
    await registration.registered(LIMIT_S)

    registration.update(dataclasses.replace(record, role=Role.DECODE, draining=True, incarnation=1))
    await registration.registered(LIMIT_S)
    updated = await next_change(watcher)
    expected = dataclasses.replace(record, role=Role.DECODE, draining=True)
    assert isinstance(updated, Updated) and decode_instance(updated.value) == expected

    await registration.close()
    removed = await next_change(watcher)
    assert isinstance(removed, Removed) and removed.key == KEY


async def test_masters_register_as_well(client: EtcdClient, make_registration: MakeRegistration) -> None:
    master = MasterRecord(id="m0", http_address="127.0.0.1:1", rpc_address="127.0.0.1:2", incarnation=1)
    await make_registration(client, master).registered(LIMIT_S)
    stored = await client.get("/pdserve/test/masters/m0")
    assert stored is not None and stored.value == encode_record(master)


async def test_a_revoked_lease_means_the_next_incarnation(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    registration = make_registration(client, make_record(), ttl_s=2, on_incarnation=incarnations.put_nowait)
    await registration.registered(LIMIT_S)
    stored = await client.get(KEY)
    assert stored is not None and stored.lease_id is not None
    await client.revoke(stored.lease_id)
    assert await asyncio.wait_for(incarnations.get(), LIMIT_S) == 2
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 2


async def test_a_key_deleted_by_others_comes_back(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    registration = make_registration(client, make_record(), ttl_s=2, on_incarnation=incarnations.put_nowait)
    await registration.registered(LIMIT_S)
    await client.delete(KEY)
    await asyncio.wait_for(incarnations.get(), LIMIT_S)
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 2


async def test_the_lease_is_kept_beyond_its_ttl(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    """The clock is a lease of the same length, granted later, which nobody renews."""
    registration = make_registration(client, make_record(), ttl_s=1)
    await registration.registered(LIMIT_S)
    clock = await client.grant(1)
    revision = await client.put("/clock", b"", clock.id)
    async with client.watch("/clock", revision + 1) as stream, asyncio.timeout(LIMIT_S):
        while not await stream.read(silence_s=5):
            pass
    assert (await stored_record(client)).incarnation == 1


async def test_updates_without_end_do_not_keep_the_lease_from_renewal(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    registration = make_registration(client, make_record(), ttl_s=1)
    await registration.registered(LIMIT_S)
    clock = await client.grant(1)
    revision = await client.put("/clock", b"", clock.id)
    async with client.watch("/clock", revision + 1) as stream, asyncio.timeout(LIMIT_S):
        while not await stream.read(silence_s=0.05):
            registration.update(make_record())
            await registration.registered(LIMIT_S)
    assert registration.record.incarnation == 1


async def test_silence_beyond_the_ttl_means_the_next_incarnation(
    real_etcd: RealServer,
    make_client: Callable[..., EtcdClient],
    make_record: MakeRecord,
    make_registration: MakeRegistration,
) -> None:
    client = make_client(real_etcd.address, timeout_s=0.5)
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    registration = make_registration(client, make_record(), ttl_s=1, on_incarnation=incarnations.put_nowait)
    await registration.registered(LIMIT_S)
    real_etcd.suspend()
    try:
        assert await asyncio.wait_for(incarnations.get(), LIMIT_S) == 2
    finally:
        real_etcd.resume()
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 2


async def test_a_cut_link_means_the_next_incarnation(
    client: EtcdClient,
    link: Link,
    make_client: Callable[..., EtcdClient],
    make_record: MakeRecord,
    make_registration: MakeRegistration,
) -> None:
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    registration = make_registration(
        make_client(link.address), make_record(), ttl_s=1, on_incarnation=incarnations.put_nowait
    )
    await registration.registered(LIMIT_S)
    await link.cut()
    assert await asyncio.wait_for(incarnations.get(), LIMIT_S) == 2
    await link.open()
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 2
    assert incarnations.empty()


async def test_etcd_may_come_after_the_worker(
    stopped_etcd: Etcd,
    make_client: Callable[..., EtcdClient],
    make_record: MakeRecord,
    make_registration: MakeRegistration,
) -> None:
    client = make_client(stopped_etcd.address)
    registration = make_registration(client, make_record())
    with pytest.raises(TimeoutError):
        await registration.registered(0)
    await stopped_etcd.start()
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 1


async def test_a_restarted_etcd_has_the_worker_again(
    etcd: Etcd,
    make_client: Callable[..., EtcdClient],
    make_record: MakeRecord,
    make_registration: MakeRegistration,
    make_watcher: Callable[..., PrefixWatcher],
    next_change: NextChange,
) -> None:
    client = make_client(etcd.address)
    registration = make_registration(client, make_record(), ttl_s=2)
    await registration.registered(LIMIT_S)
    await etcd.stop()
    await etcd.start()
    watcher = make_watcher(client, KEY)
    added = await next_change(watcher)
    assert isinstance(added, Added)
    registration.update(make_record(role=Role.PREFILL))
    await registration.registered(LIMIT_S)
    assert (await stored_record(client)).role is Role.PREFILL


async def test_a_superseded_life_comes_after_the_newer_one_when_that_is_gone(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    """R38: masters that have seen the newer incarnation would not look at an older one again."""
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    older = make_registration(
        client, make_record(incarnation=8, role=Role.DECODE), on_incarnation=incarnations.put_nowait
    )
    await older.registered(LIMIT_S)
    newer = make_registration(client, make_record(incarnation=9, role=Role.PREFILL))
    await newer.registered(LIMIT_S)
    older.update(make_record(role=Role.MIX))
    with pytest.raises(NewerIncarnation, match="incarnation 9, newer than 8"):
        await older.registered(LIMIT_S)
    assert older.newer is not None
    assert (await stored_record(client)).role is Role.PREFILL
    await newer.close()
    assert await asyncio.wait_for(incarnations.get(), LIMIT_S) == 10
    older.update(make_record(role=Role.DECODE))
    await older.registered(LIMIT_S)
    assert (await stored_record(client)).incarnation == 10
    assert older.newer is None


@pytest.mark.parametrize("own", [3, 9])
async def test_a_start_comes_after_whatever_is_stored(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration, own: int
) -> None:
    """R18: a worker that is started again within the TTL of its last life, with a clock that went back."""
    await make_registration(client, make_record(incarnation=9)).registered(LIMIT_S)
    incarnations: asyncio.Queue[int] = asyncio.Queue()
    restarted = make_registration(
        client, make_record(incarnation=own, role=Role.MIX), on_incarnation=incarnations.put_nowait
    )
    await restarted.registered(LIMIT_S)
    assert await stored_record(client) == make_record(incarnation=10, role=Role.MIX)
    assert incarnations.get_nowait() == 10


async def test_a_newer_incarnation_takes_the_place_for_good(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    older = make_registration(client, make_record(incarnation=1))
    await older.registered(LIMIT_S)
    newer = make_registration(client, make_record(incarnation=2))
    await newer.registered(LIMIT_S)
    older.update(make_record(role=Role.PREFILL))
    with pytest.raises(NewerIncarnation):
        await older.registered(LIMIT_S)
    await older.close()
    assert (await stored_record(client)) == make_record(incarnation=2)


async def test_garbage_under_the_key_is_replaced(
    client: EtcdClient, make_record: MakeRecord, make_registration: MakeRegistration
) -> None:
    await client.put(KEY, b"not a record")
    await make_registration(client, make_record()).registered(LIMIT_S)
    assert await stored_record(client) == make_record()


async def test_closing_does_not_wait_for_an_etcd_that_is_away(
    etcd: Etcd,
    make_client: Callable[..., EtcdClient],
    make_record: MakeRecord,
    make_registration: MakeRegistration,
) -> None:
    registration = make_registration(make_client(etcd.address), make_record())
    await registration.registered(LIMIT_S)
    await etcd.stop()
    async with asyncio.timeout(LIMIT_S):
        await registration.close(timeout_s=0.2)
