"""Sends blocks over the connection itself: from one pool to the socket to the other pool, with no copy between."""

from collections.abc import Sequence

from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.frames import FrameError
from kvcache.transfer.payloads import Blocks
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.transport import BlockBatch


class Tcp:
    name = "tcp"
    kind = 1
    is_one_sided = False

    def offer(self, memory: RegisteredMemory) -> bytes:
        return b""

    def can_use(self, offer: bytes, memory: RegisteredMemory) -> bool:
        return True

    def sender(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> "TcpSender":
        return TcpSender(channel, memory, timeout_s)

    def receiver(
        self, channel: Channel, offer: bytes, memory: RegisteredMemory, silence_timeout_s: float
    ) -> "TcpReceiver":
        return TcpReceiver(channel, silence_timeout_s)


class TcpSender:
    """The blocks go right behind their frame."""

    def __init__(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> None:
        self._channel = channel
        self._memory = memory
        self._timeout_s = timeout_s

    def send(self, batch: BlockBatch) -> int:
        views = self._memory.read_out(batch.blocks)
        checksums = block_checksums(views, self._memory.block_bytes)
        self._channel.send(Blocks(batch.first, checksums).frame(), self._timeout_s, views)
        return sum(view.nbytes for view in views)


class TcpReceiver:
    def __init__(self, channel: Channel, silence_timeout_s: float) -> None:
        self._channel = channel
        self._silence_timeout_s = silence_timeout_s

    def receive(self, told: bytes, landing: Sequence[memoryview]) -> None:
        if told:
            raise FrameError(f"{len(told)} bytes beside blocks over TCP")
        self._channel.receive_into(landing, self._silence_timeout_s)
