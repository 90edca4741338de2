"""Both kinds of etcd behind one small interface, and everything built on them, closed in the end."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import grpc.aio
import pytest

from protos.served_model import ServedModel
from protos.session_messages import Role
from registry.backoff import Backoff
from registry.embedded.server import EmbeddedEtcd
from registry.embedded.store import EtcdStore
from registry.errors import RegistryError
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import InstanceRecord
from registry.registration import Registration
from registry.watcher import Change, PrefixWatcher
from tests.cluster import free_port

LIMIT_S = 20.0

NextChange = Callable[[PrefixWatcher], Awaitable[Change]]
UntilAnswered = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


class Etcd(Protocol):
    """An etcd that can be taken away and brought back under the same address."""

    @property
    def address(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class EmbeddedServer:
    """Comes back empty, as another cluster."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._port = free_port(host)
        self._server: EmbeddedEtcd | None = None
        self.address = f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    async def start(self, store: EtcdStore | None = None) -> None:
        self._server = EmbeddedEtcd(self._host, self._port, store=store)
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()


class RealServer:
    """Debian's etcd in a process of its own; it is killed, and comes back on the same data."""

    def __init__(
        self, data_dir: Path, host: str = "127.0.0.1", flags: Sequence[str] = (), scheme: str = "http"
    ) -> None:
        port = free_port(host)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"{scheme}://{self.address}"
        self._scheme = scheme
        self._log = data_dir / "etcd.log"
        self._data = data_dir / "etcd"
        # The short heartbeat is for the start, and for the shortest TTL, which etcd derives from it.
        self._command = [
            *("etcd", "--name", "test", "--data-dir", str(self._data), "--log-outputs", "stderr"),
            *("--heartbeat-interval", "10", "--election-timeout", "100", "--logger", "zap"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}"),
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220
        if self._scheme == "http":
            options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)]
            target = self.address if self.address.startswith("127") else f"ipv6:{self.address}"
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                await asyncio.wait_for(channel.channel_ready(), LIMIT_S)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(LIMIT_S)

    def lose_disk(self) -> None:
        """The next start is as the same cluster, with nothing in it."""
        assert self._process is None
        shutil.rmtree(self._data)

    def suspend(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Link:
    """A TCP relay to one address that can be cut (connections end, new ones are refused) or held (bytes wait)."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.address = f"127.0.0.1:{self._port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def hold(self) -> None:
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            both = [self._copy(reader, far_writer), self._copy(far_reader, writer)]
            await asyncio.wait([asyncio.create_task(way) for way in both], return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return


def require_etcd() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("the program etcd is not installed (Debian: etcd-server)")


@pytest.fixture
def make_real_etcd(tmp_path: Path) -> Callable[..., RealServer]:
    require_etcd()

    def make(flags: Sequence[str] = (), scheme: str = "http") -> RealServer:
        return RealServer(tmp_path, flags=flags, scheme=scheme)

    return make


@pytest.fixture
async def real_etcd(make_real_etcd: Callable[..., RealServer]) -> AsyncIterator[RealServer]:
    server = make_real_etcd()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _make_server(kind: str, tmp_path: Path, host: str) -> Etcd:
    if kind == "embedded":
        return EmbeddedServer(host)
    require_etcd()
    return RealServer(tmp_path, host)


@pytest.fixture
async def make_embedded_etcd() -> AsyncIterator[Callable[[], EmbeddedServer]]:
    servers: list[EmbeddedServer] = []

    def make() -> EmbeddedServer:
        servers.append(EmbeddedServer("127.0.0.1"))
        return servers[-1]

    yield make
    for server in servers:
        await server.stop()


@pytest.fixture(params=["embedded", "real"])
async def stopped_etcd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Etcd]:
    """Each kind of etcd, not yet there."""
    server = _make_server(request.param, tmp_path, "127.0.0.1")
    yield server
    await server.stop()


@pytest.fixture
async def etcd(stopped_etcd: Etcd) -> Etcd:
    """Each kind of etcd."""
    await stopped_etcd.start()
    return stopped_etcd


@pytest.fixture
async def link(etcd: Etcd) -> AsyncIterator[Link]:
    """A way to each kind of etcd."""
    relay = Link(etcd.address)
    await relay.open()
    yield relay
    relay.release()
    await relay.cut()


@pytest.fixture(params=["embedded", "real"])
async def etcd_on_ipv6(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Etcd]:
    server = _make_server(request.param, tmp_path, "::1")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def make_client() -> AsyncIterator[Callable[..., EtcdClient]]:
    """Makes clients of `endpoints`, with EtcdConfig's other fields."""
    clients: list[EtcdClient] = []

    def make(
        endpoints: str, *, user: str | None = None, ca_file: Path | None = None, timeout_s: float = 1.0
    ) -> EtcdClient:
        password = None if user is None else f"{user}-password"
        ca = None if ca_file is None else str(ca_file)
        clients.append(EtcdClient(EtcdConfig(endpoints, user, password, ca, timeout_s=timeout_s)))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def client(etcd: Etcd, make_client: Callable[..., EtcdClient]) -> EtcdClient:
    return make_client(etcd.address)


@pytest.fixture
async def make_registration() -> AsyncIterator[Callable[..., Registration]]:
    """Makes registrations in the cluster `test`, started, with short pauses."""
    registrations: list[Registration] = []

    def make(
        client: EtcdClient,
        record: InstanceRecord,
        *,
        ttl_s: int = 10,
        on_incarnation: Callable[[int], None] | None = None,
    ) -> Registration:
        registration = Registration(
            client, "test", record, ttl_s=ttl_s, on_incarnation=on_incarnation, backoff=Backoff(0.02, 0.2)
        )
        registrations.append(registration)
        registration.start()
        return registration

    yield make
    for registration in registrations:
        await registration.close(timeout_s=0.5)


@pytest.fixture
async def make_watcher() -> AsyncIterator[Callable[..., PrefixWatcher]]:
    """Makes watchers, started, with short pauses."""
    watchers: list[PrefixWatcher] = []

    def make(client: EtcdClient, prefix: str, *, silence_s: float = 10.0) -> PrefixWatcher:
        watchers.append(PrefixWatcher(client, prefix, silence_s=silence_s, backoff=Backoff(0.02, 0.2)))
        watchers[-1].start()
        return watchers[-1]

    yield make
    for watcher in watchers:
        await watcher.close()


@pytest.fixture
def next_change() -> NextChange:
    async def take(watcher: PrefixWatcher) -> Change:
        return await asyncio.wait_for(anext(watcher), LIMIT_S)

    return take


@pytest.fixture
def make_record() -> Callable[..., InstanceRecord]:
    def make(instance: str = "w0", incarnation: int = 1, role: Role = Role.MIX) -> InstanceRecord:
        return InstanceRecord(
            instance=instance,
            role=role,
            rpc_address="127.0.0.1:7777",
            transfer_address="127.0.0.1:26000",
            http_address="127.0.0.1:8010",
            model=ServedModel("tiny", "00", "float32"),
            incarnation=incarnation,
            layout_fingerprint="00ff",
            block_size=16,
            num_blocks=64,
            max_context=2048,
            max_num_seqs=8,
            host="localhost",
            pid=1,
            version="0.1",
        )

    return make


@pytest.fixture
def until_answered() -> UntilAnswered:
    """Calls again as long as the registry cannot answer yet, as everything in this package does."""

    async def call(attempt: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(0.02, 0.2)
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await attempt()
                    return
                except RegistryError:
                    await asyncio.sleep(backoff.next_s())

    return call
