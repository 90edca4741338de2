"""Transfers that go well, on each transport, with the peer in this process and in another."""

import queue
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.counters import ConnectionOutcome
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.frames import MAX_RECORD_BYTES
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    ask,
    client_of,
    content,
    each_transport,
    handle_of,
    on_verified,
)


@each_transport
def test_the_bytes_arrive_in_the_blocks_of_the_receiver(
    transport: str, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    source, sink, releases = make_memory(seed=1), make_memory(seed=2), Releases()
    server = make_server(source, batch_bytes=5 * source.layout.block_bytes)
    from_blocks, to_blocks = [3, 4, 5, 30, 2, 9, 8, 20], [7, 6, 10, 11, 12, 1, 0, 31]
    others = [block for block in range(32) if block not in to_blocks]
    untouched = content(sink, others)
    export = server.open(1, releases.put)
    export.publish(from_blocks)
    export.seal(b"record")
    result = client_of(sink, transport).pull(export.handle, 0, to_blocks).run()
    assert content(sink, to_blocks) == content(source, from_blocks)
    assert content(sink, others) == untouched
    assert (result.record, result.transport) == (b"record", transport)
    assert (result.num_blocks_sent, result.num_blocks_skipped) == (8, 0)
    assert result.num_bytes == 8 * source.layout.block_bytes
    assert 0 <= result.wait_s <= result.duration_s
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED
    counters = server.counters
    assert (counters.num_blocks[transport], counters.num_bytes[transport]) == (8, result.num_bytes)
    assert counters.released[ReleaseReason.ACKNOWLEDGED] == 1
    assert (counters.connections[ConnectionOutcome.ACCEPTED], counters.num_open_exports) == (1, 0)
    assert counters.connections[ConnectionOutcome.LOST] == 0


@each_transport
def test_skipped_blocks_are_neither_sent_nor_touched(
    transport: str, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    source, sink = make_memory(seed=1), make_memory(seed=2)
    server = make_server(source)
    export = server.open(1, Releases().put)
    export.publish([0, 1, 2, 3, 4])
    export.seal(b"")
    before = content(sink, [10, 11, 12])
    progress: list[int] = []
    result = client_of(sink, transport, on_verified(progress.append)).pull(export.handle, 3, [10, 11, 12, 13, 14]).run()
    assert content(sink, [10, 11, 12]) == before
    assert content(sink, [13, 14]) == content(source, [3, 4])
    assert (result.num_blocks_sent, result.num_blocks_skipped, progress) == (2, 3, [4, 5])
    assert server.counters.num_blocks[transport] == 2


@each_transport
def test_blocks_travel_while_prefill_still_computes(
    transport: str, make_memory: MakeMemory, make_server: MakeServer, workers: ThreadPoolExecutor
) -> None:
    source, sink = make_memory(seed=1), make_memory()
    export = make_server(source).open(1, Releases().put)
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    pulled = workers.submit(client_of(sink, transport, on_verified(arrived.put)).pull(export.handle, 0, range(9)).run)
    for chunk in ([0, 1, 2], [3], [4, 5, 6, 7, 8]):
        export.publish(chunk)
        while arrived.get(timeout=WAIT_S) <= chunk[-1]:
            pass
        assert content(sink, chunk) == content(source, chunk)
    assert not pulled.done()
    export.seal(b"done")
    assert pulled.result(timeout=WAIT_S).record == b"done"


@each_transport
@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_a_receiver_that_has_everything_still_gets_the_record(
    transport: str, num_blocks: int, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    server, releases = make_server(make_memory()), Releases()
    export = server.open(1, releases.put)
    export.publish(range(num_blocks))
    export.seal(b"r" * MAX_RECORD_BYTES)
    result = client_of(make_memory(), transport).pull(export.handle, num_blocks, range(num_blocks)).run()
    assert (result.record, result.num_bytes) == (b"r" * MAX_RECORD_BYTES, 0)
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED
    assert sum(server.counters.num_blocks.values()) == 0


def test_a_record_above_the_limit_is_refused_where_it_is_made(make_memory: MakeMemory, make_server: MakeServer) -> None:
    export = make_server(make_memory()).open(1, Releases().put)
    with pytest.raises(ValueError, match="at most"):
        export.seal(bytes(MAX_RECORD_BYTES + 1))


def test_a_long_prompt_needs_many_frames(make_memory: MakeMemory, make_server: MakeServer) -> None:
    source, sink = make_memory(3000, seed=1), make_memory(3000)
    for transport in ("tcp", "vm_read"):
        export = make_server(source, batch_bytes=1 << 30).open(1, Releases().put)
        blocks = list(range(0, 3000, 2)) + list(range(1, 3000, 2))
        export.publish(blocks)
        export.seal(b"")
        client_of(sink, transport).pull(export.handle, 0, blocks).run()
        assert content(sink, blocks) == content(source, blocks)
        sink.tensor.zero_()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6(host: str, make_memory: MakeMemory, make_server: MakeServer) -> None:
    source, sink = make_memory(seed=1), make_memory()
    export = make_server(source, host).open(1, Releases().put)
    assert export.handle.address.startswith("[::1]:")
    export.publish([4])
    export.seal(b"six")
    assert client_of(sink, "tcp").pull(export.handle, 0, [5]).run().record == b"six"
    assert content(sink, [5]) == content(source, [4])


def test_many_transfers_at_once(make_memory: MakeMemory, make_server: MakeServer, workers: ThreadPoolExecutor) -> None:
    source, sink, releases = make_memory(64, seed=1), make_memory(64), Releases()
    server = make_server(source)
    exports = [server.open(leg, releases.put) for leg in range(8)]
    client = TransferClient(sink, sink.layout.fingerprint())
    spans = [list(range(8 * number, 8 * number + 8)) for number in range(8)]
    pulls = [
        workers.submit(client.pull(export.handle, 0, span).run) for export, span in zip(exports, spans, strict=True)
    ]
    for step in range(8):
        for export, span in zip(exports, spans, strict=True):
            export.publish([span[step]])
    for number, export in enumerate(exports):
        export.seal(str(number).encode())
    assert [pull.result(timeout=WAIT_S).record for pull in pulls] == [str(number).encode() for number in range(8)]
    assert content(sink, list(range(64))) == content(source, list(range(64)))
    assert [releases.get(timeout=WAIT_S) for _ in exports] == [ReleaseReason.ACKNOWLEDGED] * 8


def test_one_sided_reads_are_not_offered_for_memory_that_is_staged(
    make_memory: MakeMemory, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoolMemory, "is_host", property(lambda _: False))
    source, sink = make_memory(seed=1), make_memory()
    export = make_server(source, batch_bytes=1 << 20).open(1, Releases().put)
    export.publish([3, 4, 9])
    export.seal(b"staged")
    result = TransferClient(sink, sink.layout.fingerprint()).pull(export.handle, 0, [9, 3, 5]).run()
    assert result.transport == "tcp"
    assert content(sink, [9, 3, 5]) == content(source, [3, 4, 9])


class TestAnotherProcess:
    BLOCK_SIZE = 64

    @each_transport
    def test_pull_from_it(
        self, transport: str, make_memory: MakeMemory, spawn_peer: Callable[..., subprocess.Popen[str]]
    ) -> None:
        peer = spawn_peer("produce", 32, self.BLOCK_SIZE, 7, 30)
        handle = handle_of(ask(peer, do="open", leg=3))
        sink, source = make_memory(32, block_size=self.BLOCK_SIZE), make_memory(32, 7, self.BLOCK_SIZE)
        first_chunk = threading.Event()

        def on_progress(num_verified: int) -> None:
            if num_verified == 2:
                first_chunk.set()

        with ThreadPoolExecutor(1) as pool:
            pulled = pool.submit(client_of(sink, transport, on_verified(on_progress)).pull(handle, 1, range(8)).run)
            ask(peer, do="publish", leg=3, blocks=[31, 30])
            assert first_chunk.wait(WAIT_S)
            ask(peer, do="publish", leg=3, blocks=[10, 11, 12, 13, 14, 15])
            ask(peer, do="seal", leg=3, record="across")
            result = pulled.result(timeout=WAIT_S)
        assert (result.record, result.transport) == (b"across", transport)
        assert content(sink, list(range(1, 8))) == content(source, [30, 10, 11, 12, 13, 14, 15])
        assert ask(peer, do="next_release") == {"leg": 3, "reason": "acknowledged"}
