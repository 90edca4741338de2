"""What the tests of transfers share: clients, peers in other processes, and hooks into a pull."""

import base64
import json
import queue
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.errors import TransferError
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.frames import Frame, FrameType
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import Claim, Verified
from kvcache.transfer.pull import Pull
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.table import TRANSPORTS, named
from kvcache.transfer.transports.tcp import Tcp

WAIT_S = 20.0

MakeMemory = Callable[..., PoolMemory]
MakeServer = Callable[..., TransferServer]
SpawnPeer = Callable[..., subprocess.Popen[str]]
Releases = queue.SimpleQueue[ReleaseReason]

each_transport = pytest.mark.parametrize("transport", [transport.name for transport in TRANSPORTS])


def client_of(memory: PoolMemory, transport: str, tap: FrameTap | None = None, **settings: float) -> TransferClient:
    """One that takes the transport, and TCP should that one fail."""
    transports = named(dict.fromkeys([transport, "tcp"]))
    return TransferClient(memory, memory.layout.fingerprint(), transports=transports, tap=tap, **settings)  # type: ignore[arg-type]


def on_verified(act: Callable[[int], object]) -> FrameTap:
    """Acts with the number of leading blocks that D has verified, just before P is told."""

    def tap(frame: Frame, ranges: list[memoryview]) -> list[memoryview]:
        if frame.type is FrameType.VERIFIED:
            act(Verified.parse(frame.payload).num_blocks)
        return ranges

    return tap


def content(memory: PoolMemory, blocks: Sequence[int]) -> bytes:
    return b"".join(memory.block_views(blocks))


def failure_of(pull: Pull) -> TransferError:
    with pytest.raises(TransferError) as failure:
        pull.run()
    return failure.value


def port_of(server: TransferServer) -> tuple[str, int]:
    host, port = server.address.rsplit(":", 1)
    return host, int(port)


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Waits until the peer hangs up; False when it says something first."""
    connection.settimeout(WAIT_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def transfer_works(server: TransferServer, memory: PoolMemory, sink: PoolMemory) -> bool:
    releases = Releases()
    export = server.open(99, releases.put)
    export.publish([0, 1])
    export.seal(b"still here")
    result = TransferClient(sink, sink.layout.fingerprint()).pull(export.handle, 0, [0, 1]).run()
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED
    return result.record == b"still here" and b"".join(sink.block_views([0, 1])) == b"".join(memory.block_views([0, 1]))


def fields_of(export: Export) -> dict[str, object]:
    return {
        "token": export.handle.token,
        "leg": export.handle.leg,
        "epoch": export.handle.epoch,
        "layout": export.handle.layout,
        "num_skip": 0,
        "kinds": frozenset({Tcp.kind}),
    }


def claim(export: Export, **changes: object) -> bytes:
    return Claim(**fields_of(export) | changes).frame().pack()  # type: ignore[arg-type]


def ask(peer: subprocess.Popen[str], **command: Any) -> dict[str, Any]:
    tell(peer, **command)
    return read(peer)


def tell(peer: subprocess.Popen[str], **command: Any) -> None:
    assert peer.stdin is not None
    peer.stdin.write(json.dumps(command) + "\n")
    peer.stdin.flush()


def read(peer: subprocess.Popen[str]) -> dict[str, Any]:
    assert peer.stdout is not None
    answer: dict[str, Any] = json.loads(peer.stdout.readline())
    return answer


def handle_of(answer: dict[str, Any]) -> KvHandle:
    return KvHandle.decode(base64.b64decode(answer["handle"]))
