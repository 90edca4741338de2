"""The client against the built-in and a real etcd."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from registry.errors import Compacted, LeaseLost, RegistryDenied, RegistryUnavailable
from registry.etcd import wire
from registry.etcd.client import EtcdClient
from registry.etcd.watch_stream import Delete, Put, WatchEvent, WatchStream
from tests.tls_files import make_certificate

if TYPE_CHECKING:
    from tests.registry.conftest import Etcd, Link, RealServer, UntilAnswered


@pytest.fixture
def dead_address() -> Iterator[str]:
    """A port that is taken, and where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


async def read_events(stream: WatchStream, count: int) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    async with asyncio.timeout(20):
        while len(events) < count:
            events += await stream.read(silence_s=5)
    return events


async def test_keys_are_put_read_and_deleted(client: EtcdClient) -> None:
    assert await client.get("/a") is None
    revision = await client.put("/a", b"\x00\xff")
    stored = await client.get("/a")
    assert stored is not None
    assert (stored.value, stored.mod_revision, stored.lease_id) == (b"\x00\xff", revision, None)
    assert await client.delete("/a")
    assert not await client.delete("/a")


async def test_a_listing_holds_exactly_the_prefix(client: EtcdClient) -> None:
    for key in ("/a", "/a/1", "/a/2", "/a0", "/b"):
        revision = await client.put(key, b"")
    listing = await client.get_prefix("/a/")
    assert [kv.key for kv in listing.key_values] == ["/a/1", "/a/2"]
    assert listing.revision == revision


async def test_replace_needs_the_key_as_it_was(client: EtcdClient) -> None:
    assert await client.replace("/a", b"1", None, None) is not None
    assert await client.replace("/a", b"2", None, None) is None
    seen = await client.get("/a")
    assert await client.replace("/a", b"3", seen, None) is not None
    assert await client.replace("/a", b"4", seen, None) is None
    stored = await client.get("/a")
    assert stored is not None and stored.value == b"3"


async def test_a_revoked_lease_is_lost_with_its_keys(client: EtcdClient) -> None:
    lease = await client.grant(30)
    await client.put("/a", b"", lease.id)
    assert await client.keep_alive(lease.id) == lease.ttl_s
    await client.revoke(lease.id)
    assert await client.get("/a") is None
    with pytest.raises(LeaseLost):
        await client.keep_alive(lease.id)
    with pytest.raises(LeaseLost):
        await client.put("/a", b"", lease.id)
    with pytest.raises(LeaseLost):
        await client.revoke(lease.id)


async def test_a_lease_ends_by_itself(client: EtcdClient) -> None:
    lease = await client.grant(1)
    revision = await client.put("/a", b"", lease.id)
    async with client.watch("/a", revision + 1) as stream:
        assert await read_events(stream, 1) == [Delete("/a", revision + 1)]


async def test_a_watch_tells_the_past_and_the_present_in_order(client: EtcdClient) -> None:
    first = await client.put("/a/1", b"1")
    await client.put("/b", b"")
    await client.delete("/a/1")
    async with client.watch("/a/", first) as stream:
        await client.put("/a/2", b"2")
        events = await read_events(stream, 3)
    assert [event.key_value.value if isinstance(event, Put) else None for event in events] == [b"1", None, b"2"]
    assert events[1] == Delete("/a/1", first + 2)


async def test_a_quiet_watch_is_proved_alive(client: EtcdClient) -> None:
    async with client.watch("/a", 1 + (await client.get_prefix("/a")).revision) as stream:
        assert await stream.read(silence_s=0.01) == []
        await client.put("/a", b"")
        assert len(await read_events(stream, 1)) == 1


async def test_a_watch_that_went_silent_is_found_out(
    etcd: Etcd, link: Link, make_client: Callable[..., EtcdClient]
) -> None:
    client = make_client(link.address, timeout_s=0.3)
    async with client.watch("/a", 1000) as stream:
        link.hold()
        with pytest.raises(RegistryUnavailable, match="nothing heard"):
            await stream.read(silence_s=0.1)


async def test_a_watch_from_a_compacted_revision_says_so(client: EtcdClient) -> None:
    first = await client.put("/a", b"1")
    last = await client.put("/a", b"2")
    await client.compact(last)
    with pytest.raises(Compacted) as caught:
        async with client.watch("/a", first) as stream:
            await stream.read(silence_s=5)
    assert caught.value.compact_revision == last


async def test_a_server_that_is_not_there_is_unavailable(
    dead_address: str, make_client: Callable[..., EtcdClient]
) -> None:
    client = make_client(dead_address)
    with pytest.raises(RegistryUnavailable, match=dead_address):
        await client.get("/a")
    with pytest.raises(RegistryUnavailable):
        async with client.watch("/a", 1):
            pass
    await client.close()
    with pytest.raises(RegistryUnavailable, match="closed"):
        await client.get("/a")


async def test_a_server_that_never_answers_ends_in_a_deadline(make_client: Callable[..., EtcdClient]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = make_client(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(RegistryUnavailable):
            await client.get("/a")
        with pytest.raises(RegistryUnavailable):
            await client.keep_alive(1)
        with pytest.raises(RegistryUnavailable):
            async with client.watch("/a", 1):
                pass


async def test_closing_the_client_ends_its_watches(client: EtcdClient) -> None:
    async with client.watch("/a", 1000) as stream:
        reading = asyncio.create_task(stream.read(silence_s=60))
        await client.close()
        with pytest.raises(RegistryUnavailable):
            await asyncio.wait_for(reading, 10)


async def test_a_dead_endpoint_among_several_does_not_matter(
    etcd: Etcd, dead_address: str, make_client: Callable[..., EtcdClient]
) -> None:
    for endpoints in (f"{dead_address},{etcd.address}", f"{etcd.address},{dead_address}"):
        client = make_client(endpoints)
        for number in range(10):
            await client.put("/a", str(number).encode())
        stored = await client.get("/a")
        assert stored is not None and stored.value == b"9"


async def test_names_and_both_families_may_be_mixed(
    etcd: Etcd, dead_address: str, make_client: Callable[..., EtcdClient]
) -> None:
    port = etcd.address.rpartition(":")[2]
    for endpoints in (f"localhost:{port}", f"localhost:{port},{dead_address}", f"[::1]:1,{etcd.address}"):
        await make_client(endpoints).put("/a", b"")


async def test_ipv6_literals_work(etcd_on_ipv6: Etcd, make_client: Callable[..., EtcdClient]) -> None:
    client = make_client(etcd_on_ipv6.address)
    assert etcd_on_ipv6.address.startswith("[::1]:")
    await client.put("/a", b"6")
    stored = await client.get("/a")
    assert stored is not None and stored.value == b"6"


async def test_proxies_of_the_environment_are_not_used(
    etcd: Etcd, dead_address: str, make_client: Callable[..., EtcdClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://{dead_address}")
        monkeypatch.setenv(name.upper(), f"http://{dead_address}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    port = etcd.address.rpartition(":")[2]
    for endpoints in (etcd.address, f"localhost:{port}"):
        await make_client(endpoints).put("/a", b"")


def etcdctl(address: str, *arguments: str) -> None:
    if shutil.which("etcdctl") is None:
        pytest.skip("the program etcdctl is not installed (Debian: etcd-client)")
    command = ["etcdctl", "--endpoints", address, *arguments]
    subprocess.run(command, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/usr/local/bin"}, check=True, timeout=20)


def enable_users(address: str) -> None:
    etcdctl(address, "user", "add", "root:root-password")
    etcdctl(address, "user", "grant-role", "root", "root")
    etcdctl(address, "user", "add", "guest:guest-password")
    etcdctl(address, "auth", "enable")


@pytest.fixture
async def etcd_with_users(real_etcd: RealServer) -> RealServer:
    await asyncio.to_thread(enable_users, real_etcd.address)
    return real_etcd


async def test_a_user_logs_in(etcd_with_users: RealServer, make_client: Callable[..., EtcdClient]) -> None:
    client = make_client(etcd_with_users.address, user="root")
    revision = await client.put("/a", b"")
    lease = await client.grant(30)
    assert await client.keep_alive(lease.id) == 30
    async with client.watch("/a", revision) as stream:
        assert len(await read_events(stream, 1)) == 1


async def test_who_is_not_known_is_denied(etcd_with_users: RealServer, make_client: Callable[..., EtcdClient]) -> None:
    for user in (None, "stranger", "guest"):
        with pytest.raises(RegistryDenied):
            await make_client(etcd_with_users.address, user=user).get("/a")


async def test_a_stale_token_leads_to_a_new_login(
    etcd_with_users: RealServer, make_client: Callable[..., EtcdClient], until_answered: UntilAnswered
) -> None:
    """etcd keeps its tokens in memory: those from before its restart are stale."""
    client = make_client(etcd_with_users.address, user="root")
    revision = await client.put("/a", b"1")
    await etcd_with_users.stop()
    await etcd_with_users.start()
    await until_answered(lambda: client.put("/a", b"2"))

    await etcd_with_users.stop()
    await etcd_with_users.start()

    async def watch() -> None:
        async with client.watch("/a", revision) as stream:
            assert len(await read_events(stream, 2)) == 2

    await until_answered(watch)


async def test_a_user_may_be_given_before_users_are_enabled(
    real_etcd: RealServer, make_client: Callable[..., EtcdClient]
) -> None:
    client = make_client(real_etcd.address, user="root")
    await client.put("/a", b"1")
    await asyncio.to_thread(enable_users, real_etcd.address)
    await client.put("/a", b"2")


async def test_tls_is_checked_against_the_ca(
    tmp_path: Path,
    make_real_etcd: Callable[..., RealServer],
    make_client: Callable[..., EtcdClient],
    until_answered: UntilAnswered,
    dead_address: str,
) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    server = make_real_etcd(flags=["--cert-file", str(certificate), "--key-file", str(key)], scheme="https")
    await server.start()
    try:
        client = make_client(server.address, ca_file=certificate)
        await until_answered(lambda: client.put("/a", b"1"))
        await make_client(f"https://{server.address}", ca_file=certificate).put("/a", b"2")
        await make_client(f"{server.address},{dead_address}", ca_file=certificate).put("/a", b"3")
        with pytest.raises(RegistryUnavailable):  # signed by nobody the system knows
            await make_client(f"https://{server.address}").get("/a")
        with pytest.raises(RegistryUnavailable):
            await make_client(server.address).get("/a")
    finally:
        await server.stop()


async def test_a_grpc_client_of_others_sees_etcds_statuses(etcd: Etcd) -> None:
    """Foreign clients tell errors apart by code and text."""
    cases = [
        ("Put", wire.PutRequest(key=b"k", lease=99), grpc.StatusCode.NOT_FOUND, "requested lease not found"),
        ("Put", wire.PutRequest(), grpc.StatusCode.INVALID_ARGUMENT, "key is not provided"),
        ("Put", wire.PutRequest(key=b"k", ignore_value=True), grpc.StatusCode.INVALID_ARGUMENT, "key not found"),
        ("Range", wire.RangeRequest(key=b"k", revision=99), grpc.StatusCode.OUT_OF_RANGE, "future revision"),
        ("Compact", wire.CompactionRequest(revision=99), grpc.StatusCode.OUT_OF_RANGE, "future revision"),
    ]
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(etcd.address, options=options) as channel:
        stub = wire.KVStub(channel)
        for method, request, code, text in cases:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(stub, method)(request, timeout=5)
            assert caught.value.code() is code
            assert text in (caught.value.details() or "")
