"""The built-in etcd, as etcd's own tool and foreign clients see it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import pytest

from registry.embedded.server import EmbeddedEtcd
from registry.embedded.store import EtcdStore
from registry.errors import RegistryUnavailable
from registry.etcd import wire
from registry.etcd.client import EtcdClient

if TYPE_CHECKING:
    from tests.registry.conftest import Etcd

LIMIT_S = 20.0


class Etcdctl:
    """Runs Debian's etcdctl against one server; what it prints must be the same for the built-in and a real etcd."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = ["etcdctl", "--endpoints", self._address, *arguments]
        environment = os.environ | {"ETCDCTL_API": "3"}
        return await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)

    async def __call__(self, *arguments: str, typed: str = "") -> list[str]:
        """The lines it prints. Raises ValueError with its last words when it fails."""
        process = await self.start(*arguments)
        output, errors = await asyncio.wait_for(process.communicate(typed.encode()), LIMIT_S)
        if process.returncode != 0:
            raise ValueError(errors.decode())
        return output.decode().split("\n")[:-1]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedEtcd]:
    async with EmbeddedEtcd() as server:
        yield server


@pytest.fixture
def etcdctl(etcd: Etcd) -> Etcdctl:
    if shutil.which("etcdctl") is None:
        pytest.skip("the program etcdctl is not installed (Debian: etcd-client)")
    return Etcdctl(etcd.address)


async def test_etcdctl_puts_gets_and_deletes(etcdctl: Etcdctl) -> None:
    assert await etcdctl("put", "/a/1", "one") == ["OK"]
    assert await etcdctl("put", "/a/1", "uno", "--prev-kv") == ["OK", "/a/1", "one"]
    assert await etcdctl("put", "/a/2", "--", "-two") == ["OK"]
    assert await etcdctl("put", "/b", "") == ["OK"]
    assert await etcdctl("get", "/a/1") == ["/a/1", "uno"]
    assert await etcdctl("get", "/a/1", "--rev", "2", "--print-value-only") == ["one"]
    assert await etcdctl("get", "/a/", "--prefix") == ["/a/1", "uno", "/a/2", "-two"]
    assert await etcdctl("get", "/a/", "--prefix", "--order", "DESCEND", "--keys-only") == ["/a/2", "", "/a/1", ""]
    assert await etcdctl("get", "/a/", "--prefix", "--sort-by", "VERSION", "--keys-only", "--limit", "1") == [
        "/a/2",
        "",
    ]
    assert await etcdctl("get", "/a/2", "--from-key", "--keys-only") == ["/a/2", "", "/b", ""]
    assert await etcdctl("get", "/a/1", "/a/2") == ["/a/1", "uno"]
    assert await etcdctl("put", "/a/1", "--ignore-value") == ["OK"]
    assert await etcdctl("get", "/a/1", "--print-value-only") == ["uno"]
    assert await etcdctl("del", "/a/", "--prefix", "--prev-kv") == ["2", "/a/1", "uno", "/a/2", "-two"]
    assert await etcdctl("del", "/a/", "--prefix") == ["0"]
    assert await etcdctl("get", "", "--prefix", "--keys-only") == ["/b", ""]


async def test_etcdctl_makes_transactions(etcdctl: Etcdctl) -> None:
    await etcdctl("put", "/a", "1")
    typed = (
        'value("/a") = "1"\nversion("/a") > "0"\nmod("/b") = "0"\ncreate("/a") < "9"\n\nput /b 2\nget /b\n\ndel /a\n\n'
    )
    assert await etcdctl("txn", typed=typed) == ["SUCCESS", "", "OK", "", "/b", "2"]
    assert await etcdctl("txn", typed=typed) == ["FAILURE", "", "1"]
    with pytest.raises(ValueError, match="duplicate key"):
        await etcdctl("txn", typed="\nput /a 1\nput /a 2\n\n\n")
    assert await etcdctl("get", "/a") == []


async def test_etcdctl_watches_a_prefix(etcdctl: Etcdctl) -> None:
    await etcdctl("put", "/a/1", "one")
    process = await etcdctl.start("watch", "/a/", "--prefix", "--prev-kv", "--rev", "2")
    assert process.stdout is not None
    try:
        await etcdctl("put", "/b", "")
        await etcdctl("put", "/a/1", "uno")
        await etcdctl("del", "/a/1")
        expected = "PUT\n/a/1\none\nPUT\n/a/1\none\n/a/1\nuno\nDELETE\n/a/1\nuno\n/a/1\n\n"
        async with asyncio.timeout(LIMIT_S):
            assert (await process.stdout.readexactly(len(expected))).decode() == expected
    finally:
        process.kill()
        await process.wait()


async def test_etcdctl_grants_keeps_and_revokes_leases(etcdctl: Etcdctl) -> None:
    granted = (await etcdctl("lease", "grant", "60"))[0].split()
    lease = granted[1]
    assert granted[2:] == ["granted", "with", "TTL(60s)"]
    await etcdctl("put", "/a", "1", "--lease", lease)
    assert (await etcdctl("lease", "list"))[1:] == [lease]
    assert (await etcdctl("lease", "keep-alive", "--once", lease))[0].endswith("TTL(60)")
    assert "attached keys([/a])" in (await etcdctl("lease", "timetolive", lease, "--keys"))[0]
    await etcdctl("lease", "revoke", lease)
    assert await etcdctl("get", "/a") == []
    assert await etcdctl("lease", "timetolive", lease) == [f"lease {lease} already expired"]
    with pytest.raises(ValueError, match="requested lease not found"):
        await etcdctl("lease", "revoke", lease)


async def test_etcdctl_locks(etcdctl: Etcdctl) -> None:
    assert await etcdctl("lock", "/lock", "echo", "held") == ["held"]


async def test_etcdctl_compacts(etcdctl: Etcdctl) -> None:
    for value in "12":
        await etcdctl("put", "/a", value)
    await etcdctl("compact", "3")
    with pytest.raises(ValueError, match="has been compacted"):
        await etcdctl("get", "/a", "--rev", "2")
    with pytest.raises(ValueError, match="has been compacted"):
        await etcdctl("watch", "/a", "--rev", "2")


async def test_etcdctl_asks_for_health(server: EmbeddedEtcd) -> None:
    etcdctl = Etcdctl(server.address)
    assert server.address in (await etcdctl("member", "list"))[0]
    assert server.address in (await etcdctl("endpoint", "status"))[0]
    await etcdctl("endpoint", "health")
    with pytest.raises(ValueError, match="the built-in etcd has no"):
        await etcdctl("defrag")


async def test_a_watcher_that_does_not_read_is_cancelled_not_buffered() -> None:
    store = EtcdStore(max_event_bytes=1_000_000)
    options = [("grpc.enable_http_proxy", 0)]
    async with (
        EmbeddedEtcd(store=store) as server,
        grpc.aio.insecure_channel(server.address, options=options) as channel,
    ):
        stream = wire.WatchStub(channel).Watch(timeout=LIMIT_S)
        await stream.write(wire.WatchRequest(create_request=wire.WatchCreateRequest(key=b"k")))
        assert (await stream.read()).created
        put = wire.PutRequest(key=b"k", value=b"x" * 100_000)
        for _ in range(300):
            await wire.KVStub(channel).Put(put, timeout=LIMIT_S)
            assert store.num_bytes() < 1_500_000
        while not (response := await stream.read()).canceled:
            assert response.events
        assert response.compact_revision == store.compacted_revision
        stream.cancel()


async def test_watches_of_one_stream_are_told_apart_filtered_and_ended(server: EmbeddedEtcd) -> None:
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        stream = wire.WatchStub(channel).Watch(timeout=LIMIT_S)
        no_puts = wire.WatchCreateRequest(key=b"k", filters=[wire.WatchCreateRequest.NOPUT], prev_kv=True)
        for create in (no_puts, wire.WatchCreateRequest(key=b"k")):
            await stream.write(wire.WatchRequest(create_request=create))
        first, second = [(await stream.read()).watch_id for _ in range(2)]
        await wire.KVStub(channel).Put(wire.PutRequest(key=b"k", value=b"v"), timeout=LIMIT_S)
        response = await stream.read()
        assert (response.watch_id, [event.type for event in response.events]) == (second, [wire.Event.PUT])
        await stream.write(wire.WatchRequest(cancel_request={"watch_id": second}))
        response = await stream.read()
        assert (response.watch_id, response.canceled) == (second, True)
        await wire.KVStub(channel).DeleteRange(wire.DeleteRangeRequest(key=b"k"), timeout=LIMIT_S)
        response = await stream.read()
        assert (response.watch_id, response.events[0].prev_kv.value) == (first, b"v")
        await stream.write(wire.progress_request())
        response = await stream.read()
        assert (response.watch_id, response.header.revision, len(response.events)) == (-1, 3, 0)
        stream.cancel()


async def test_a_taken_port_is_refused(server: EmbeddedEtcd) -> None:
    host, _, port = server.address.rpartition(":")
    second = EmbeddedEtcd(host, int(port))
    try:
        with pytest.raises(OSError, match=server.address):
            await second.start()
    finally:
        await second.close()


async def test_closing_frees_the_port_and_leaves_no_task(make_client: Callable[..., EtcdClient]) -> None:
    before = asyncio.all_tasks()
    server = EmbeddedEtcd()
    await server.start()
    client = make_client(server.address)
    async with client.watch("/a", 1):
        await server.close()
    with pytest.raises(RegistryUnavailable):
        await client.get("/a")
    await client.close()
    assert {task for task in asyncio.all_tasks() - before if "grpc" not in repr(task)} == set()
    host, _, port = server.address.rpartition(":")
    async with EmbeddedEtcd(host, int(port)) as again:
        assert again.address == server.address


@pytest.mark.parametrize("method", ["Snapshot", "Defragment"])
async def test_what_the_built_in_registry_has_not_is_unimplemented_without_a_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A13"""
    async with EmbeddedEtcd() as server, grpc.aio.insecure_channel(server.address) as channel:
        ask = channel.unary_stream(f"/etcdserverpb.Maintenance/{method}", bytes, bytes)
        call = ask(b"", timeout=30)
        with pytest.raises(grpc.aio.AioRpcError, match=f"the built-in etcd has no .*{method}") as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records
