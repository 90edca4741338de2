"""What the tests of transfers share: clients, peers in other processes, and hooks into a pull."""

import base64
import json
import queue
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.errors import TransferError
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.frames import Frame, FrameType
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import Verified
from kvcache.transfer.pull import Pull
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.table import TRANSPORTS, named

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
