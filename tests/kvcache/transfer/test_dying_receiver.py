"""Receivers that stop or are killed: blocks are held no longer than the lease, and every release happens once."""

import base64
import os
import queue
import random
import signal
import subprocess
from collections import Counter

import torch

from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.handle import KvHandle
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    SpawnPeer,
    each_transport,
    read,
    tell,
)

MAX_MOMENTS = 20
BLOCK_SIZE = 1024  # blocks of 256 KiB


@each_transport
def test_a_stopped_receiver_holds_blocks_no_longer_than_the_lease(
    transport: str, make_memory: MakeMemory, make_server: MakeServer, spawn_peer: SpawnPeer
) -> None:
    peer = spawn_peer("consume", 96, BLOCK_SIZE)
    assert read(peer) == {"ready": True}
    releases = Releases()
    server = make_server(make_memory(96, 1, BLOCK_SIZE), lease_s=0.1, send_timeout_s=0.2)
    export = server.open(1, releases.put)
    export.publish(range(96))
    tell_to_pull(peer, export.handle, 96, transport, stop_at=2)
    pid = read(peer)["pid"]
    assert [read(peer), read(peer)] == [{"progress": 1}, {"progress": 2}]
    export.seal(b"")
    try:
        assert releases.get(timeout=WAIT_S) is ReleaseReason.EXPIRED
    finally:
        os.kill(pid, signal.SIGKILL)
    assert releases.empty()


def test_fifty_transfers_with_random_ends(
    make_memory: MakeMemory, make_server: MakeServer, spawn_peer: SpawnPeer
) -> None:
    """A7: receivers are killed, exports aborted and expired at random; nothing leaks, no data is wrong."""
    chance = random.Random(11)
    peer = spawn_peer("consume", 16, 64)
    assert read(peer) == {"ready": True}
    source = make_memory(16, 1, 64)
    patient, hasty = make_server(source), make_server(source, lease_s=0.05)
    sums = [source.tensor[block].view(-1).view(torch.int32).sum().item() for block in range(16)]
    releases: queue.SimpleQueue[tuple[int, ReleaseReason]] = queue.SimpleQueue()
    outcomes: Counter[str] = Counter()
    for leg in range(50):

        def on_release(reason: ReleaseReason, leg: int = leg) -> None:
            releases.put((leg, reason))

        fate, fatal_block = chance.choice(["kill", "kill", "abort", "live"]), chance.randrange(1, 17)
        export = (hasty if fate == "kill" else patient).open(leg, on_release)
        tell_to_pull(peer, export.handle, 16, chance.choice(["tcp", "vm_read"]))
        export.publish(range(chance.randrange(fatal_block, 17)))
        while "pid" not in (event := read(peer)):
            assert "progress" in event, "of the one that was killed before"
        pid = event["pid"]
        while "progress" in (event := read(peer)) and event["progress"] < fatal_block:
            pass
        if fate == "kill":
            os.kill(pid, signal.SIGKILL)
        if fate == "abort":
            export.abort("chance")
        export.publish(range(export.state().num_blocks, 16))
        export.seal(b"record")
        while fate != "kill" and "progress" in event:
            event = read(peer)
        released, reason = releases.get(timeout=WAIT_S)
        assert released == leg
        if fate == "live":
            assert (event["record"], event["content"], reason) == ("record", sums, ReleaseReason.ACKNOWLEDGED)
        elif fate == "abort":
            assert (event, reason) == ({"failure": "ABORTED"}, ReleaseReason.ABORTED)
        else:
            assert reason is ReleaseReason.EXPIRED
        outcomes[fate] += 1
    assert releases.empty()
    assert min(outcomes.values()) > 3
    for server in (patient, hasty):
        assert server.counters.num_open_exports == 0
    assert sum(patient.counters.released.values()) + sum(hasty.counters.released.values()) == 50


@each_transport
def test_killed_at_every_frame(
    transport: str, make_memory: MakeMemory, make_server: MakeServer, spawn_peer: SpawnPeer
) -> None:
    """The prefill side releases each export once: read to its end, or when its lease ends."""
    peer, releases = spawn_peer("consume", 4, 64), Releases()
    assert read(peer) == {"ready": True}
    server = make_server(make_memory(4, 1, 64), lease_s=0.6)  # no slow machine ends it before its time
    for moment in range(1, MAX_MOMENTS):
        export = server.open(moment, releases.put)
        export.publish(range(4))
        tell_to_pull(peer, export.handle, 4, transport, die_at=moment)
        while "pid" not in (event := read(peer)):
            assert "progress" in event, "of the one that was killed before"
        while moment > 2 and "progress" in (event := read(peer)) and event["progress"] < min(moment - 2, 4):
            pass
        export.seal(b"record")
        if releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED:
            break
    assert moment >= 8, "claim, begin, four times verified and ACK are said"
    assert releases.empty() and server.counters.num_open_exports == 0


def tell_to_pull(
    peer: subprocess.Popen[str],
    handle: KvHandle,
    num_blocks: int,
    transport: str,
    stop_at: int | None = None,
    die_at: int | None = None,
) -> None:
    encoded = base64.b64encode(handle.encode()).decode()
    transports = list(dict.fromkeys([transport, "tcp"]))
    tell(peer, handle=encoded, num_blocks=num_blocks, transports=transports, stop_at=stop_at, die_at=die_at)
