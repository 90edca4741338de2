"""Blocks over the connection itself: from P's pool to the socket to D's pool, with no copy between."""

from collections.abc import Sequence

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.payloads import Offer
from kvcache.transfer.transports.transport import BlockBatch


class TcpSender:
    def __init__(self, channel: Channel, memory: PoolMemory, timeout_s: float) -> None:
        self._channel = channel
        self._memory = memory
        self._timeout_s = timeout_s

    def send(self, batch: BlockBatch) -> int:
        views = self._memory.read_out(batch.blocks)
        offer = Offer(batch.first, block_checksums(views, self._memory.layout.block_bytes))
        self._channel.send(offer.frame(), self._timeout_s, views)
        return sum(view.nbytes for view in views)


class TcpReceiver:
    def __init__(self, channel: Channel, silence_s: float) -> None:
        self._channel = channel
        self._silence_s = silence_s

    def receive(self, addresses: Sequence[int] | None, landing: Sequence[memoryview]) -> None:
        assert addresses is None
        self._channel.receive_into(landing, self._silence_s)
