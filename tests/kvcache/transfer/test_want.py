"""R9: a transfer port that lacks descriptors, threads or luck refuses what it must, and never dies in silence."""

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from kvcache.transfer.admission import Admission
from kvcache.transfer.channel import Channel
from kvcache.transfer.counters import ConnectionOutcome
from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.frames import HEADER_BYTES, FrameType, Header
from kvcache.transfer.payloads import Claim
from kvcache.transfer.pending_connection import PendingConnection
from kvcache.transfer.refusal import Refusal
from tests.cluster import eventually
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    claim,
    client_of,
    failure_of,
    is_closed_by_peer,
    port_of,
    transfer_works,
)


@contextlib.contextmanager
def descriptors(limit: int) -> Iterator[None]:
    """What is open stays open; nothing gets a number from `limit` on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refusal_on(connection: socket.socket) -> Refusal:
    header = Header.parse(connection.recv(HEADER_BYTES))
    assert header.type is FrameType.REFUSE
    return Refusal.parse(connection.recv(header.payload_bytes))


def test_a_claim_without_a_descriptor_left_is_refused_alone(make_memory: MakeMemory, make_server: MakeServer) -> None:
    memory = make_memory(seed=1)
    server = make_server(memory)
    export = server.open(1, Releases().put)
    num_open = len(os.listdir("/proc/self/fd"))
    with socket.create_connection(port_of(server)) as puller:
        puller.settimeout(WAIT_S)
        eventually(lambda: len(os.listdir("/proc/self/fd")) >= num_open + 2, "the connection is accepted")
        with descriptors(3):
            puller.sendall(claim(export))
            refusal = refusal_on(puller)
    assert refusal.reason is TransferFailure.REFUSED and "Too many open files" in refusal.text
    assert transfer_works(server, memory, make_memory())
    assert not server.death.done()


def test_who_connects_without_a_descriptor_left_is_served_later(
    make_memory: MakeMemory, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make_memory(seed=1)
    server = make_server(memory)
    export = server.open(1, Releases().put)
    with socket.socket() as puller:
        puller.settimeout(WAIT_S)
        with descriptors(3):
            puller.connect(port_of(server))
            puller.sendall(claim(export))
            eventually(lambda: "Too many open files" in caplog.text, "accepting failed")
        assert puller.recv(4) == b"PDKV"
    assert transfer_works(server, memory, make_memory())
    assert not server.death.done()


def test_pending_connections_cost_a_share_of_the_descriptors_only(
    make_memory: MakeMemory, make_server: MakeServer
) -> None:
    memory = make_memory(seed=1)
    with descriptors(800), contextlib.ExitStack() as stack:
        server = make_server(memory, max_pending=10_000, handshake_timeout_s=60.0)
        crowd = [stack.enter_context(socket.create_connection(port_of(server))) for _ in range(150)]
        assert all(is_closed_by_peer(visitor) for visitor in crowd[:50])
        assert transfer_works(server, memory, make_memory())


def test_no_thread_is_to_be_had(
    make_memory: MakeMemory, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9, R2: the puller is told, and takes nobody for cut off."""
    memory = make_memory(seed=1)
    server = make_server(memory)
    export = server.open(1, Releases().put)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_connection(port_of(server)) as puller, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        puller.sendall(claim(export))
        told = Channel(puller).receive(WAIT_S)
        assert (told.type, Refusal.parse(told.payload).reason) == (FrameType.REFUSE, TransferFailure.REFUSED)
        assert is_closed_by_peer(puller)
    assert server.counters.connections[ConnectionOutcome.REFUSED] == 1
    assert transfer_works(server, memory, make_memory())


def test_leases_end_while_the_acceptor_is_stuck(
    make_memory: MakeMemory, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go_on = threading.Event(), threading.Event()
    judge = Admission.judge

    def be_slow(admission: Admission, claim: Claim, num_connections: int) -> Export | Refusal:
        stuck.set()
        assert go_on.wait(WAIT_S)
        return judge(admission, claim, num_connections)

    monkeypatch.setattr(Admission, "judge", be_slow)
    server, releases = make_server(make_memory(), lease_s=0.05), Releases()
    with socket.create_connection(port_of(server)) as puller:
        puller.sendall(claim(server.open(1, Releases().put)))
        assert stuck.wait(WAIT_S)
        server.open(2, releases.put).seal(b"")
        assert releases.get(timeout=WAIT_S) is ReleaseReason.EXPIRED
        go_on.set()


@pytest.mark.parametrize("thread", ["acceptor", "leases"])
def test_a_thread_that_dies_is_reported(
    thread: str, make_memory: MakeMemory, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = MemoryError("nobody thought of this")

    def fail(*_: object) -> None:
        raise fault

    server, releases = make_server(make_memory(), lease_s=0.05), Releases()
    export = server.open(1, releases.put)
    with monkeypatch.context() as patched, socket.create_connection(port_of(server)) as visitor:
        if thread == "acceptor":
            patched.setattr(PendingConnection, "read_claim", fail)
            visitor.sendall(b"anything")
        else:
            patched.setattr(ExportTable, "expire", fail)
            export.seal(b"")
        assert server.death.exception(timeout=WAIT_S) is fault
    server.close()
    assert releases.get(timeout=WAIT_S) in (ReleaseReason.CLOSED, ReleaseReason.EXPIRED)


def test_a_pull_without_a_descriptor_left_blames_nobody_else(make_memory: MakeMemory, make_server: MakeServer) -> None:
    """R2: the pair is well."""
    export = make_server(make_memory(seed=1)).open(1, Releases().put)
    pull = client_of(make_memory(), "tcp").pull(export.handle, 0, [0])
    with descriptors(3):
        error = failure_of(pull)
    assert error.reason is TransferFailure.BROKEN and not error.is_cut_off
