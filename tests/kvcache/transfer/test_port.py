"""P14: whatever knocks at the transfer port, transfers go on, and it costs little."""

import contextlib
import logging
import os
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcache.transfer.channel import Channel
from kvcache.transfer.client import TransferClient
from kvcache.transfer.counters import ConnectionOutcome
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frames import HEADER_BYTES, PROTOCOL_VERSION, Frame, FrameType, Header
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import Ack, Begin, Claim, Verified
from kvcache.transfer.refusal import Refusal
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.tcp import Tcp
from kvcache.transfer.transports.vm_read import VmRead
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    claim,
    fields_of,
    is_closed_by_peer,
    port_of,
    transfer_works,
)


def tls_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="worker").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "knock",
    [
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
        tls_hello(),
        Frame(FrameType.PING).pack(),
        Frame(FrameType.RECORD, bytes(4)).pack(),
        b"PDKV\x01\x01\0\0" + b"\xff" * 12,
        Frame(FrameType.CLAIM, b"too short").pack(),
    ],
    ids=["random", "http", "tls", "ping", "record", "huge", "short"],
)
def test_what_is_no_claim_is_closed_without_an_answer(
    knock: bytes, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    memory = make_memory(seed=1)
    server = make_server(memory)
    with socket.create_connection(port_of(server)) as visitor:
        visitor.sendall(knock)
        assert is_closed_by_peer(visitor)
    assert server.counters.connections[ConnectionOutcome.GARBAGE] == 1
    assert transfer_works(server, memory, make_memory())


def test_a_puller_of_another_version_is_told_so(make_memory: MakeMemory, make_server: MakeServer) -> None:
    """R22"""
    server = make_server(make_memory())
    export = server.open(1, Releases().put)
    with socket.create_connection(port_of(server)) as puller:
        puller.sendall(b"PDKV\x07" + claim(export)[5:])
        puller.settimeout(WAIT_S)
        header = Header.parse(puller.recv(HEADER_BYTES))
        refusal = Refusal.parse(puller.recv(header.payload_bytes))
    assert (header.type, refusal.reason) == (FrameType.REFUSE, TransferFailure.OTHER_VERSION)
    assert "version 7" in refusal.text and f"speaks {PROTOCOL_VERSION}" in refusal.text
    assert server.counters.connections[ConnectionOutcome.REFUSED] == 1
    assert transfer_works(server, make_memory(), make_memory())


def test_a_peer_of_another_version_is_found_out(make_memory: MakeMemory, workers: ThreadPoolExecutor) -> None:
    """R22: whatever it answers, it is not asked again."""
    sink = make_memory()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        handle = KvHandle(f"127.0.0.1:{listening.getsockname()[1]}", bytes(16), 1, 1, sink.layout.fingerprint(), 60.0)
        pulled = workers.submit(TransferClient(sink, sink.layout.fingerprint()).pull(handle, 0, [0]).run)
        peer, _ = listening.accept()
        with peer:
            peer.sendall(b"PDKV\x07" + bytes(15))
            with pytest.raises(TransferError) as failure:
                pulled.result(timeout=WAIT_S)
    assert failure.value.reason is TransferFailure.OTHER_VERSION
    assert "version 7" in failure.value.text and f"speaks {PROTOCOL_VERSION}" in failure.value.text


@pytest.mark.parametrize("num_bytes", [0, 1, 10, 20, 60])
def test_half_a_claim_and_silence_is_closed_in_time(
    num_bytes: int, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    memory = make_memory(seed=1)
    server = make_server(memory, handshake_timeout_s=0.1)
    with socket.create_connection(port_of(server)) as visitor:
        visitor.sendall(claim(server.open(1, Releases().put))[:num_bytes])
        assert is_closed_by_peer(visitor)
    assert server.counters.connections[ConnectionOutcome.GARBAGE] == 1


def test_a_claim_may_arrive_byte_by_byte(make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory())
    export = server.open(1, Releases().put)
    with socket.create_connection(port_of(server)) as puller:
        puller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in claim(export):
            puller.send(bytes([byte]))
        puller.settimeout(WAIT_S)
        assert puller.recv(4) == b"PDKV"


def test_hundreds_of_silent_connections_cost_no_thread_and_stop_nobody(
    make_memory: MakeMemory, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make_memory(seed=1)
    server = make_server(memory, max_pending=100, handshake_timeout_s=60.0)
    num_threads = threading.active_count()
    with contextlib.ExitStack() as stack, caplog.at_level(logging.DEBUG, logger="kvcache"):
        crowd = [stack.enter_context(socket.create_connection(port_of(server))) for _ in range(400)]
        for number, visitor in enumerate(crowd[200:]):
            with contextlib.suppress(OSError):  # turned away already
                visitor.sendall(os.urandom(64) if number % 2 else b"PDKV")
        assert transfer_works(server, memory, make_memory())
        assert threading.active_count() <= num_threads + 1
        assert all(is_closed_by_peer(visitor) for visitor in crowd[:200])
        assert server.counters.connections[ConnectionOutcome.GARBAGE] >= 300
        assert len([record for record in caplog.records if "turned away" in record.message]) == 1


def test_refusals_fill_no_log(
    make_memory: MakeMemory, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(make_memory())
    export = server.open(1, Releases().put)
    with caplog.at_level(logging.DEBUG, logger="kvcache"):
        for number in range(50):
            with socket.create_connection(port_of(server)) as visitor:
                visitor.sendall(claim(export, token=number.to_bytes(16, "big")))
                assert visitor.recv(4) == b"PDKV"
        assert server.counters.connections[ConnectionOutcome.REFUSED] == 50
        assert len([record for record in caplog.records if "turned away" in record.message]) == 1


@pytest.mark.parametrize(
    "after",
    [
        Frame(FrameType.CLAIM, bytes(82)).pack(),
        Begin(VmRead.kind).frame().pack(),
        os.urandom(64),
        Begin(Tcp.kind).frame().pack() + Verified(7).frame().pack(),
        Begin(Tcp.kind).frame().pack() + Ack(2).frame().pack(),
        Begin(Tcp.kind).frame().pack() + os.urandom(64),
    ],
    ids=["claim", "one-sided", "random", "verified", "early-ack", "late-random"],
)
def test_a_puller_that_breaks_the_protocol_loses_its_connection_and_nothing_else(
    after: bytes, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    memory, releases = make_memory(seed=1), Releases()
    server = make_server(memory)
    export = server.open(1, releases.put)
    export.publish([0, 1])
    with socket.create_connection(port_of(server)) as puller:
        puller.sendall(claim(export) + after)
        puller.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            while puller.recv(1 << 16):
                pass
    assert releases.empty()
    sink = make_memory()
    export.seal(b"unharmed")
    result = TransferClient(sink, sink.layout.fingerprint()).pull(export.handle, 0, [0, 1]).run()
    assert result.record == b"unharmed"
    assert server.counters.connections[ConnectionOutcome.GARBAGE] == 1


def test_a_newer_connection_takes_the_place_of_the_older_one(make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory())
    export = server.open(1, Releases().put)
    with socket.create_connection(port_of(server)) as older, socket.create_connection(port_of(server)) as newer:
        begin = Begin(Tcp.kind).frame().pack()
        older.sendall(claim(export) + begin)
        older.settimeout(WAIT_S)
        assert older.recv(4) == b"PDKV"
        newer.sendall(claim(export) + begin)
        with contextlib.suppress(ConnectionResetError):
            while older.recv(1 << 16):
                pass
        newer.settimeout(WAIT_S)
        assert newer.recv(4) == b"PDKV"


def test_a_waiting_puller_sees_signs_of_life(make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory(), ping_interval_s=0.02)
    export = server.open(1, Releases().put)
    puller = Channel(socket.create_connection(port_of(server)))
    with contextlib.closing(puller):
        puller.send(Claim(**fields_of(export)).frame(), WAIT_S)  # type: ignore[arg-type]
        assert puller.receive(WAIT_S).type is FrameType.ACCEPT
        puller.send(Begin(Tcp.kind).frame(), WAIT_S)
        assert [puller.receive(WAIT_S).type for _ in range(3)] == [FrameType.PING] * 3


def test_running_transfers_are_bounded(make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory(), max_connections=1)
    first, second = server.open(1, Releases().put), server.open(2, Releases().put)
    second.seal(b"later")
    sink = make_memory()
    client = TransferClient(sink, sink.layout.fingerprint())
    with socket.create_connection(port_of(server)) as puller:
        puller.sendall(claim(first) + Begin(Tcp.kind).frame().pack())
        assert puller.recv(4) == b"PDKV"
        with pytest.raises(TransferError, match="transfers are running"):
            client.pull(second.handle, 0, []).run()


def test_a_busy_port_is_an_error_at_start(make_memory: MakeMemory, make_server: MakeServer) -> None:
    memory = make_memory()
    taken = port_of(make_server(memory))[1]
    second = TransferServer(memory, memory.layout.fingerprint(), "127.0.0.1", taken)
    with pytest.raises(OSError):
        second.start()
    second.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::]"])
def test_a_wildcard_needs_something_to_advertise(host: str, make_memory: MakeMemory) -> None:
    memory = make_memory()
    with pytest.raises(ValueError, match="advertise_host"):
        TransferServer(memory, memory.layout.fingerprint(), host, 0)


def test_what_is_advertised_is_the_given_host_and_the_bound_port(
    make_memory: MakeMemory,
) -> None:
    memory = make_memory()
    server = TransferServer(memory, memory.layout.fingerprint(), "0.0.0.0", 0, advertise_host="127.0.0.1")
    server.start()
    with contextlib.closing(server):
        host, port = port_of(server)
        assert host == "127.0.0.1" and port > 0
        assert transfer_works(server, memory, make_memory())
