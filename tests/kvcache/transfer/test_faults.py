"""Transfers that go wrong or are cancelled: the receiver learns why, and nothing wrong is ever used."""

import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvcache.transfer.counters import ConnectionOutcome
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.handle import KvHandle
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    SpawnPeer,
    ask,
    client_of,
    content,
    each_transport,
    failure_of,
    handle_of,
    on_verified,
    read,
)

MAX_MOMENTS = 20

Proxy = Callable[[str, Callable[[int, int, bytes], bytes | None]], str]


class TestClaims:
    """Only the exact handle opens a hand-off, and a refusal tells nothing to whoever lacks the token."""

    @pytest.mark.parametrize("wrong", [{"token": bytes(16)}, {"leg": 2}, {"epoch": 0}])
    def test_a_wrong_claim_is_refused(
        self, wrong: dict[str, Any], make_memory: MakeMemory, make_server: MakeServer
    ) -> None:
        server, sink = make_server(make_memory(seed=1)), make_memory()
        export = server.open(1, Releases().put)
        export.publish([0])
        export.seal(b"secret")
        handle = dataclasses.replace(export.handle, **wrong)
        error = failure_of(client_of(sink, "tcp").pull(handle, 0, [0]))
        assert (error.reason, error.text) == (TransferFailure.REFUSED, "unknown hand-off")
        assert server.counters.connections[ConnectionOutcome.REFUSED] == 1
        assert client_of(sink, "tcp").pull(export.handle, 0, [0]).run().record == b"secret"

    def test_another_layout_is_found_out_before_connecting(self, make_memory: MakeMemory) -> None:
        sink = make_memory(block_size=8)
        handle = KvHandle("127.0.0.1:9", bytes(16), 1, 1, make_memory().layout.fingerprint(), 60.0)
        assert failure_of(client_of(sink, "tcp").pull(handle, 0, [0])).reason is (TransferFailure.LAYOUT_MISMATCH)

    def test_another_layout_is_found_out_by_the_server(self, make_memory: MakeMemory, make_server: MakeServer) -> None:
        server, sink = make_server(make_memory()), make_memory(block_size=8)
        export = server.open(1, Releases().put)
        handle = dataclasses.replace(export.handle, layout=sink.layout.fingerprint())
        assert failure_of(client_of(sink, "tcp").pull(handle, 0, [0])).reason is (TransferFailure.LAYOUT_MISMATCH)

    def test_a_restarted_worker_at_the_same_address_refuses_old_handles(
        self, make_memory: MakeMemory, make_server: MakeServer
    ) -> None:
        memory, sink, releases = make_memory(seed=1), make_memory(), Releases()
        server = make_server(memory)
        old = server.open(1, releases.put)
        server.close()
        assert releases.get(timeout=WAIT_S) is ReleaseReason.CLOSED
        restarted = make_server(memory, port=int(old.handle.address.rpartition(":")[2]))
        new = restarted.open(1, Releases().put)
        new.seal(b"new life")
        client = client_of(sink, "tcp")
        assert failure_of(client.pull(old.handle, 0, [])).reason is TransferFailure.REFUSED
        assert client.pull(new.handle, 0, []).run().record == b"new life"
        with pytest.raises(RuntimeError, match="closed"):
            server.open(2, releases.put)

    def test_nobody_listens(self, make_memory: MakeMemory) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            address = f"127.0.0.1:{unused.getsockname()[1]}"
        sink = make_memory()
        handle = KvHandle(address, bytes(16), 1, 1, sink.layout.fingerprint(), 60.0)
        assert failure_of(client_of(sink, "tcp").pull(handle, 0, [])).reason is TransferFailure.UNREACHABLE

    def test_peers_that_disagree_on_the_number_of_blocks(
        self, make_memory: MakeMemory, make_server: MakeServer
    ) -> None:
        export = make_server(make_memory()).open(1, Releases().put)
        export.publish([0, 1, 2])
        export.seal(b"")
        for blocks in ([0, 1], [0, 1, 2, 3]):
            error = failure_of(client_of(make_memory(), "tcp").pull(export.handle, 0, blocks))
            assert error.reason is TransferFailure.CORRUPT


class TestDamage:
    def test_any_flipped_byte_is_found(self, make_memory: MakeMemory, make_server: MakeServer, proxy: Proxy) -> None:
        source, releases = make_memory(4, seed=1), Releases()
        server = make_server(source)
        num_flips = 0
        for position in range(0, 4 * source.layout.block_bytes, 23):
            export = server.open(1, releases.put)
            export.publish([0, 1, 2, 3])
            export.seal(b"a record long enough to be hit")
            was_hit = threading.Event()

            def flip(
                _connection: int, offset: int, data: bytes, at: int = position, hit: threading.Event = was_hit
            ) -> bytes:
                if not offset <= at < offset + len(data):
                    return data
                hit.set()
                return data[: at - offset] + bytes([data[at - offset] ^ 0x10]) + data[at - offset + 1 :]

            handle = dataclasses.replace(export.handle, address=proxy(export.handle.address, flip))
            error = failure_of(client_of(make_memory(4), "tcp", max_connections=1).pull(handle, 0, range(4)))
            assert was_hit.is_set()
            # A damaged nonce address or process id only rules one-sided reads out; everything else must not pass.
            assert error.reason is TransferFailure.CORRUPT
            num_flips += 1
            export.abort("test")
            assert releases.get(timeout=WAIT_S) is ReleaseReason.ABORTED
        assert num_flips > 100

    def test_pages_that_change_under_a_one_sided_read_are_read_again(
        self, make_memory: MakeMemory, make_server: MakeServer
    ) -> None:
        source, sink, releases = make_memory(seed=1), make_memory(), Releases()
        server = make_server(source)
        export = server.open(1, releases.put)

        def on_progress(num_verified: int) -> None:
            if num_verified == 1:
                # The checksums D gets are of the content before; what it reads is this.
                all_offered.wait(WAIT_S)
                source.tensor[1:4].fill_(3)

        all_offered = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            pull = client_of(sink, "vm_read", on_verified(on_progress)).pull(export.handle, 0, range(4))
            pulled = pool.submit(pull.run)
            export.publish([0, 1, 2, 3])
            export.seal(b"")
            while server.counters.num_blocks["vm_read"] < 4:
                assert not pulled.done()
            all_offered.set()
            result = pulled.result(timeout=WAIT_S)
        assert result.transport == "tcp"
        assert content(sink, [0, 1, 2, 3]) == content(source, [0, 1, 2, 3])


class TestLostConnection:
    def test_a_pull_goes_on_where_it_was_cut(
        self, make_memory: MakeMemory, make_server: MakeServer, proxy: Proxy
    ) -> None:
        source, sink, releases, progress = make_memory(seed=1), make_memory(), Releases(), list[int]()
        server = make_server(source)
        export = server.open(1, releases.put)
        export.publish(range(32))
        export.seal(b"whole")

        def cut(connection: int, offset: int, data: bytes) -> bytes | None:
            half = 16 * source.layout.block_bytes
            return data if connection > 0 or offset + len(data) < half else (data[: max(half - offset, 0)] or None)

        handle = dataclasses.replace(export.handle, address=proxy(export.handle.address, cut))
        pull = client_of(sink, "tcp", on_verified(progress.append)).pull(handle, 0, range(31, -1, -1))
        assert pull.run().record == b"whole"
        assert content(sink, list(range(31, -1, -1))) == content(source, list(range(32)))
        assert progress == sorted(set(progress)) and progress[-1] == 32
        counters = server.counters
        assert counters.connections[ConnectionOutcome.ACCEPTED] == 2
        assert counters.num_blocks["tcp"] < 32 + 32
        assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED
        assert releases.empty()

    def test_connections_are_bounded(self, make_memory: MakeMemory, make_server: MakeServer, proxy: Proxy) -> None:
        server = make_server(make_memory())
        export = server.open(1, Releases().put)
        address = proxy(export.handle.address, lambda _connection, _offset, _data: None)
        pull = client_of(make_memory(), "tcp", max_connections=3).pull(
            dataclasses.replace(export.handle, address=address), 0, [0]
        )
        assert failure_of(pull).reason is TransferFailure.PEER_CLOSED
        assert server.counters.connections[ConnectionOutcome.ACCEPTED] == 3

    @each_transport
    @pytest.mark.parametrize(
        ("blow", "expected"),
        [
            (signal.SIGKILL, {TransferFailure.PEER_CLOSED, TransferFailure.UNREACHABLE}),
            (signal.SIGSTOP, {TransferFailure.TIMEOUT}),
        ],
    )
    def test_a_peer_that_dies_or_stops_half_way(
        self,
        transport: str,
        blow: signal.Signals,
        expected: set[TransferFailure],
        make_memory: MakeMemory,
        spawn_peer: SpawnPeer,
    ) -> None:
        peer = spawn_peer("produce", 8, 64, 7, 30)
        handle = handle_of(ask(peer, do="open", leg=1))
        ask(peer, do="publish", leg=1, blocks=[0, 1, 2, 3])

        def on_progress(num_verified: int) -> None:
            if num_verified == 4:
                os.kill(peer.pid, blow)

        sink, hook = make_memory(8, block_size=64), on_verified(on_progress)
        client = client_of(sink, transport, hook, silence_timeout_s=0.6, connect_timeout_s=0.6)
        assert failure_of(client.pull(handle, 0, range(8))).reason in expected

    @each_transport
    def test_a_peer_that_is_killed_at_every_frame(
        self, transport: str, make_memory: MakeMemory, spawn_peer: SpawnPeer
    ) -> None:
        """R2: whenever it dies, it is unreachable, and what was received is not used."""
        peer = spawn_peer("mortal", 4, 64, 7)
        assert read(peer) == {"ready": True}
        source, sink = make_memory(4, 7, 64), make_memory(4, block_size=64)
        for moment in range(1, MAX_MOMENTS):
            handle = handle_of(ask(peer, die_at=moment))
            try:
                result = client_of(sink, transport).pull(handle, 0, range(4)).run()
            except TransferError as error:
                assert error.is_cut_off, error
            else:
                break
        assert moment >= 8, "ACCEPT, four times BLOCKS, RECORD and RELEASED are said"
        assert result.record == b"record" and content(sink, range(4)) == content(source, range(4))


class TestCancel:
    @each_transport
    def test_a_waiting_pull_ends_and_nothing_is_written_later(
        self,
        transport: str,
        make_memory: MakeMemory,
        make_server: MakeServer,
        workers: ThreadPoolExecutor,
    ) -> None:
        source, sink, releases, started = make_memory(seed=1), make_memory(), Releases(), threading.Event()
        server = make_server(source)
        export = server.open(1, releases.put)
        export.publish([0, 1])
        pull = client_of(sink, transport, on_verified(lambda n: started.set() if n == 2 else None)).pull(
            export.handle, 0, range(8)
        )
        pulled = workers.submit(pull.run)
        assert started.wait(WAIT_S)
        pull.cancel()
        pull.cancel()
        with pytest.raises(TransferError) as failure:
            pulled.result(timeout=WAIT_S)
        assert failure.value.reason is TransferFailure.CANCELLED
        before = content(sink, list(range(32)))
        export.publish([2, 3, 4, 5, 6, 7])
        export.seal(b"")
        # Another receiver gets all of it, after which P has nothing left to say to the first one.
        client_of(make_memory(), transport).pull(export.handle, 0, range(8)).run()
        assert content(sink, list(range(32))) == before

    def test_cancelled_before_it_ran(self, make_memory: MakeMemory, make_server: MakeServer) -> None:
        server = make_server(make_memory())
        pull = client_of(make_memory(), "tcp").pull(server.open(1, Releases().put).handle, 0, [0])
        pull.cancel()
        assert failure_of(pull).reason is TransferFailure.CANCELLED
        assert server.counters.connections[ConnectionOutcome.ACCEPTED] == 0

    def test_cancelled_while_connecting(self, make_memory: MakeMemory, workers: ThreadPoolExecutor) -> None:
        sink = make_memory()
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            waiting = [socket.socket() for _ in range(3)]  # fill the backlog: whoever comes next gets no answer
            for early in waiting:
                early.setblocking(False)
                early.connect_ex(deaf.getsockname())
            handle = KvHandle(f"127.0.0.1:{deaf.getsockname()[1]}", bytes(16), 1, 1, sink.layout.fingerprint(), 60.0)
            pull = client_of(sink, "tcp", connect_timeout_s=60.0).pull(handle, 0, [])
            pulled = workers.submit(pull.run)
            while pull._channel is None:
                assert not pulled.done()
            pull.cancel()
            with pytest.raises(TransferError, match="CANCELLED"):
                pulled.result(timeout=WAIT_S)
            for early in waiting:
                early.close()
