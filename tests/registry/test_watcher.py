"""Watchers against the built-in and a real etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from registry.embedded.store import EtcdStore
from registry.etcd.client import EtcdClient
from registry.watcher import Added, Change, PrefixWatcher, Removed, Updated

if TYPE_CHECKING:
    from tests.registry.conftest import EmbeddedServer, Etcd, Link, NextChange, RealServer, UntilAnswered

LIMIT_S = 20.0

MakeClient = Callable[..., EtcdClient]
MakeWatcher = Callable[..., PrefixWatcher]


async def test_what_is_there_comes_first_then_every_change(
    client: EtcdClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    first = await client.put("/a/1", b"1")
    await client.put("/b", b"")
    watcher = make_watcher(client, "/a/")
    assert await next_change(watcher) == Added("/a/1", b"1", first)
    assert await client.put("/a/2", b"2") == first + 2
    assert await next_change(watcher) == Added("/a/2", b"2", first + 2)
    await client.put("/a/1", b"1")
    assert await next_change(watcher) == Updated("/a/1", b"1", first + 3)
    await client.delete("/a/2")
    assert await next_change(watcher) == Removed("/a/2", b"2", first + 4)


async def test_a_lease_that_ends_removes_its_key(
    client: EtcdClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    lease = await client.grant(30)
    revision = await client.put("/a/1", b"1", lease.id)
    watcher = make_watcher(client, "/a/")
    assert await next_change(watcher) == Added("/a/1", b"1", revision)
    await client.revoke(lease.id)
    assert await next_change(watcher) == Removed("/a/1", b"1", revision + 1)


async def test_etcd_may_come_after_the_watcher(
    stopped_etcd: Etcd, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    client = make_client(stopped_etcd.address)
    watcher = make_watcher(client, "/a/")
    with pytest.raises(TimeoutError):
        await watcher.listed(0)
    await stopped_etcd.start()
    await watcher.listed(LIMIT_S)
    await client.put("/a/1", b"1")
    assert isinstance(await next_change(watcher), Added)


async def test_a_cut_watch_goes_on_where_it_was(
    client: EtcdClient, link: Link, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    await client.put("/a/1", b"1")
    watcher = make_watcher(make_client(link.address), "/a/")
    assert isinstance(await next_change(watcher), Added)
    await link.cut()
    second = await client.put("/a/2", b"2")
    await client.delete("/a/1")
    await link.open()
    assert await next_change(watcher) == Added("/a/2", b"2", second)
    assert await next_change(watcher) == Removed("/a/1", b"1", second + 1)


async def test_compaction_while_the_watch_is_cut_loses_nothing(
    client: EtcdClient, link: Link, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    for name in ("kept", "gone", "changed"):
        await client.put(f"/a/{name}", b"old")
    watcher = make_watcher(make_client(link.address), "/a/")
    for _ in range(3):
        assert isinstance(await next_change(watcher), Added)
    await link.cut()
    await client.delete("/a/gone")
    changed = await client.put("/a/changed", b"new")
    added = await client.put("/a/added", b"new")
    await client.put("/b", b"")
    await client.compact(await client.put("/b", b""))
    await link.open()
    changes = {change.key: change for change in [await next_change(watcher) for _ in range(3)]}
    gone = changes.pop("/a/gone")
    assert isinstance(gone, Removed) and gone.value == b"old"
    assert changes == {
        "/a/changed": Updated("/a/changed", b"new", changed),
        "/a/added": Added("/a/added", b"new", added),
    }
    later = await client.put("/a/later", b"")
    assert await next_change(watcher) == Added("/a/later", b"", later)


async def test_a_real_etcd_killed_and_restarted_changes_nothing(
    real_etcd: RealServer,
    make_client: MakeClient,
    make_watcher: MakeWatcher,
    next_change: NextChange,
    until_answered: UntilAnswered,
) -> None:
    client = make_client(real_etcd.address)
    await client.put("/a/1", b"1")
    watcher = make_watcher(client, "/a/")
    assert isinstance(await next_change(watcher), Added)
    await real_etcd.stop()
    await real_etcd.start()
    await until_answered(lambda: client.put("/a/2", b"2"))
    change = await next_change(watcher)
    assert isinstance(change, Added) and change.key == "/a/2"


async def test_a_server_with_fewer_revisions_is_read_anew(
    make_embedded_etcd: Callable[[], EmbeddedServer],
    make_client: MakeClient,
    make_watcher: MakeWatcher,
    next_change: NextChange,
    until_answered: UntilAnswered,
) -> None:
    server = make_embedded_etcd()
    await server.start()
    client = make_client(server.address)
    await client.put("/a/1", b"1")
    watcher = make_watcher(client, "/a/")
    assert isinstance(await next_change(watcher), Added)
    await server.stop()
    await server.start()
    assert isinstance(await next_change(watcher), Removed)
    await until_answered(lambda: client.put("/a/2", b"1"))
    change = await next_change(watcher)
    assert isinstance(change, Added) and change.key == "/a/2"


async def test_a_real_etcd_that_lost_its_disk_is_read_anew(
    real_etcd: RealServer, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    client = make_client(real_etcd.address)
    await client.put("/a/1", b"1")
    watcher = make_watcher(client, "/a/")
    assert isinstance(await next_change(watcher), Added)
    await real_etcd.stop()
    real_etcd.lose_disk()
    await real_etcd.start()
    change = await next_change(watcher)
    assert isinstance(change, Removed) and change.key == "/a/1"


async def test_another_server_with_more_revisions_is_read_anew(
    make_embedded_etcd: Callable[[], EmbeddedServer],
    make_client: MakeClient,
    make_watcher: MakeWatcher,
    next_change: NextChange,
) -> None:
    """Its history from the known revision on would be taken for that of the first server."""
    store = EtcdStore()
    for key in (b"/a/2", b"/b", b"/b"):
        with store.transaction() as transaction:
            transaction.put(key, b"", None)
    server = make_embedded_etcd()
    await server.start()
    client = make_client(server.address)
    revision = await client.put("/a/1", b"1")
    watcher = make_watcher(client, "/a/")
    assert await next_change(watcher) == Added("/a/1", b"1", revision)
    await server.stop()
    await server.start(store)
    changes = {change.key: type(change) for change in [await next_change(watcher) for _ in range(2)]}
    assert changes == {"/a/1": Removed, "/a/2": Added}


async def test_a_held_link_only_delays(
    client: EtcdClient, link: Link, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    """The watch is given up as silent, many times over, and nothing is told twice."""
    watcher = make_watcher(make_client(link.address, timeout_s=0.1), "/a/", silence_s=0.05)
    await watcher.listed(LIMIT_S)
    link.hold()
    lease = await client.grant(1)
    clock = await client.put("/clock", b"", lease.id)
    first = await client.put("/a/1", b"1")
    async with client.watch("/clock", clock + 1) as stream, asyncio.timeout(LIMIT_S):
        while not await stream.read(silence_s=5):
            pass
    link.release()
    assert await next_change(watcher) == Added("/a/1", b"1", first)
    last = await client.put("/a/2", b"2")
    assert await next_change(watcher) == Added("/a/2", b"2", last)


async def test_a_slow_reader_gets_the_sum_of_what_it_missed(
    client: EtcdClient, link: Link, make_client: MakeClient, make_watcher: MakeWatcher, next_change: NextChange
) -> None:
    await client.put("/a/1", b"")
    await client.put("/a/2", b"")
    watcher = make_watcher(make_client(link.address), "/a/")
    assert isinstance(await next_change(watcher), Added)
    assert isinstance(await next_change(watcher), Added)
    await link.cut()
    for number in range(20):
        last = await client.put("/a/1", str(number).encode())
        await client.put("/a/passing", b"")
        await client.delete("/a/passing")
    await client.delete("/a/2")
    again = await client.put("/a/2", b"again")
    end = await client.put("/a/end", b"")
    await link.open()
    assert sorted([await next_change(watcher) for _ in range(3)], key=lambda change: change.revision) == [
        Updated("/a/1", b"19", last),
        Updated("/a/2", b"again", again),
        Added("/a/end", b"", end),
    ]


def replay(known: dict[str, bytes], change: Change) -> None:
    if isinstance(change, Removed):
        assert known.pop(change.key) == change.value
    else:
        assert (change.key in known) == isinstance(change, Updated)
        known[change.key] = change.value


async def replay_until_end(watcher: PrefixWatcher, known: dict[str, bytes]) -> None:
    async for change in watcher:
        replay(known, change)
        if change.key == "/a/end":
            return


@pytest.mark.parametrize("seed", range(2))
async def test_changes_add_up_whatever_happens(
    client: EtcdClient,
    link: Link,
    make_client: MakeClient,
    make_watcher: MakeWatcher,
    next_change: NextChange,
    seed: int,
) -> None:
    chance = random.Random(seed)
    watcher = make_watcher(make_client(link.address), "/a/")
    known: dict[str, bytes] = {}
    replaying = asyncio.create_task(replay_until_end(watcher, known))
    for number in range(150):
        match chance.choice(["put", "put", "put", "delete", "cut", "open", "compact"]):
            case "put":
                await client.put(f"/a/{chance.randrange(5)}", str(number).encode())
            case "delete":
                await client.delete(f"/a/{chance.randrange(5)}")
            case "compact":
                await client.compact(await client.put("/b", b""))
            case "cut":
                await link.cut()
            case _:
                await link.cut()
                await link.open()
    await link.cut()
    await link.open()
    await client.put("/a/end", b"")
    await asyncio.wait_for(replaying, LIMIT_S)
    expected = {kv.key: kv.value for kv in (await client.get_prefix("/a/")).key_values}
    while known != expected:  # after a listing, the last key may be told before others
        replay(known, await next_change(watcher))


async def test_closing_ends_the_iteration(client: EtcdClient, make_watcher: MakeWatcher) -> None:
    watcher = make_watcher(client, "/a/")
    reading = asyncio.create_task(anext(watcher, None))
    await watcher.listed(LIMIT_S)
    await watcher.close()
    assert await asyncio.wait_for(reading, LIMIT_S) is None
