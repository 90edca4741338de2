import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kvcache.layout import KvLayout
from kvcache.pool_memory import PoolMemory
from kvcache.transfer.server import TransferServer

Mangle = Callable[[int, int, bytes], bytes | None]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread and no descriptor is left by a test; what earlier tests left to gRPC may go meanwhile."""
    threads, descriptors = set(threading.enumerate()), _descriptors()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=5)
    assert set(threading.enumerate()) <= threads
    assert not _descriptors() - descriptors


def _descriptors() -> set[tuple[str, str]]:
    """(number, what it is open on) of each descriptor of this process, that of the listing left out."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture
def make_memory() -> Callable[..., PoolMemory]:
    """A pool of 1 KiB blocks (`block_size` 4), its content random where a seed is given."""

    def make(num_blocks: int = 32, seed: int | None = None, block_size: int = 4) -> PoolMemory:
        memory = PoolMemory(KvLayout(2, block_size, 2, 8, torch.float32, "test"), num_blocks)
        if seed is not None:
            memory.tensor.view(-1).view(torch.int32).random_(generator=torch.Generator().manual_seed(seed))
        return memory

    return make


@pytest.fixture
def make_server() -> Iterator[Callable[..., TransferServer]]:
    """A running server that sends block by block and pings often; closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(memory: PoolMemory, host: str = "127.0.0.1", port: int = 0, **settings: float) -> TransferServer:
            defaults: dict[str, float] = {"batch_bytes": memory.layout.block_bytes, "ping_interval_s": 0.1}
            server = TransferServer(memory, memory.layout.fingerprint(), host, port, **defaults | settings)  # type: ignore[arg-type]
            server.start()
            stack.callback(server.close)
            return server

        yield make


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    """Threads that pull."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def spawn_peer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts peer.py; killed after the test."""
    with contextlib.ExitStack() as stack:

        def spawn(*arguments: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("peer.py")), *map(str, arguments)],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield spawn


@pytest.fixture
def proxy() -> Iterator[Callable[[str, Mangle], str]]:
    """`proxy(address, mangle)` is the address of a relay.

    `mangle(connection, offset, data)` decides what the client gets instead of the server's `data`, which begins at
    `offset` of that connection; None cuts it.
    """
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(target: Callable[..., None], *arguments: object) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def copy(source: socket.socket, sink: socket.socket, connection: int, mangle: Mangle) -> None:
        offset = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                changed = mangle(connection, offset, data)
                if changed is None:
                    break
                sink.sendall(changed)
                offset += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def relay(listening: socket.socket, host: str, port: str, mangle: Mangle) -> None:
        connection = 0
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection((host, int(port)))
                sockets.extend([client, server])
                start(copy, client, server, connection, lambda _connection, _offset, data: data)
                start(copy, server, client, connection, mangle)
                connection += 1

    def begin(address: str, mangle: Mangle) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)
        start(relay, listening, *address.rsplit(":", 1), mangle)
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield begin
    for opened in sockets:
        with contextlib.suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(timeout=5)
    for opened in sockets:
        opened.close()
