"""What a transport costs: one class, here, and a place in a table that is passed in."""

import queue
from collections.abc import Sequence

import pytest

from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.client import TransferClient
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.payloads import Blocks
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.table import TRANSPORTS, named
from kvcache.transfer.transports.transport import BlockBatch
from tests.kvcache.transfer.rig import WAIT_S, MakeMemory, MakeServer, Releases, content


class Pigeon:
    """Carries blocks in a queue that both sides know; `told` says how many came along."""

    name = "pigeon"
    kind = 63
    is_one_sided = False

    def __init__(self) -> None:
        self.loft: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.is_home = True

    def offer(self, memory: RegisteredMemory) -> bytes | None:
        return b"loft 7" if memory.is_host else None

    def can_use(self, offer: bytes, memory: RegisteredMemory) -> bool:
        return self.is_home and offer == b"loft 7"

    def sender(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> "PigeonSender":
        return PigeonSender(self.loft, channel, memory, timeout_s)

    def receiver(
        self, channel: Channel, offer: bytes, memory: RegisteredMemory, silence_timeout_s: float
    ) -> "PigeonReceiver":
        return PigeonReceiver(self.loft)


class PigeonSender:
    def __init__(
        self, loft: "queue.SimpleQueue[bytes]", channel: Channel, memory: RegisteredMemory, timeout_s: float
    ) -> None:
        self._loft = loft
        self._channel = channel
        self._memory = memory
        self._timeout_s = timeout_s

    def send(self, batch: BlockBatch) -> int:
        views = self._memory.read_out(batch.blocks)
        for view in views:
            self._loft.put(bytes(view))
        blocks = Blocks(batch.first, block_checksums(views, self._memory.block_bytes), bytes([len(views)]))
        self._channel.send(blocks.frame(), self._timeout_s)
        return sum(view.nbytes for view in views)


class PigeonReceiver:
    def __init__(self, loft: "queue.SimpleQueue[bytes]") -> None:
        self._loft = loft

    def receive(self, told: bytes, landing: Sequence[memoryview]) -> None:
        carried = b"".join(self._loft.get(timeout=WAIT_S) for _ in range(told[0]))
        position = 0
        for view in landing:
            view[:] = carried[position : position + view.nbytes]
            position += view.nbytes


@pytest.mark.parametrize(("is_home", "used"), [(True, "pigeon"), (False, "vm_read")])
def test_a_transport_in_the_table_moves_kv(is_home: bool, used: str, make_memory: MakeMemory) -> None:
    source, sink, releases = make_memory(seed=1), make_memory(), Releases()
    pigeon = Pigeon()
    pigeon.is_home = is_home
    table = (pigeon, *TRANSPORTS)
    layout = source.layout.fingerprint()
    server = TransferServer(source, layout, "127.0.0.1", 0, transports=table, batch_bytes=3 * source.block_bytes)
    server.start()
    try:
        export = server.open(1, releases.put)
        export.publish([4, 5, 9, 1, 30])
        export.seal(b"flown")
        result = TransferClient(sink, layout, transports=table).pull(export.handle, 0, [0, 1, 2, 3, 7]).run()
        assert (result.record, result.transport) == (b"flown", used)
        assert content(sink, [0, 1, 2, 3, 7]) == content(source, [4, 5, 9, 1, 30])
        assert server.counters.num_blocks == dict.fromkeys((transport.name for transport in table), 0) | {used: 5}
        assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED
    finally:
        server.close()


@pytest.mark.parametrize("names", [["tcp", "vm_read"], ["vm_read", "tcp"]])
def test_the_first_transport_that_works_is_used(
    names: list[str], make_memory: MakeMemory, make_server: MakeServer
) -> None:
    source, sink = make_memory(seed=1), make_memory()
    export = make_server(source).open(1, Releases().put)
    export.publish([4])
    export.seal(b"")
    client = TransferClient(sink, sink.layout.fingerprint(), transports=named(names))
    assert client.pull(export.handle, 0, [5]).run().transport == names[0]


def test_peers_without_a_transport_in_common_cannot_reach_each_other(make_memory: MakeMemory) -> None:
    memory = make_memory()
    server = TransferServer(memory, memory.layout.fingerprint(), "127.0.0.1", 0, transports=named(["tcp"]))
    server.start()
    try:
        client = TransferClient(memory, memory.layout.fingerprint(), transports=(Pigeon(),))
        with pytest.raises(TransferError) as failure:
            client.pull(server.open(1, Releases().put).handle, 0, [0]).run()
        assert failure.value.reason is TransferFailure.UNREACHABLE and failure.value.is_cut_off
    finally:
        server.close()


def test_transports_are_chosen_by_name_and_keep_that_order() -> None:
    assert [transport.name for transport in named(["tcp", "vm_read"])] == ["tcp", "vm_read"]
    with pytest.raises(ValueError, match="no 'rdma', only vm_read, tcp"):
        named(["tcp", "rdma"])
    with pytest.raises(ValueError, match="none of vm_read, tcp"):
        named([])
    assert len({transport.kind for transport in TRANSPORTS}) == len(TRANSPORTS)
    assert all(0 <= transport.kind <= 63 for transport in TRANSPORTS)
