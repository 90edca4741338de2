"""The decode side of one connection to the prefill side: from CLAIM to RELEASED."""

import time
from collections.abc import Sequence

from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frames import Frame, FrameError, FrameType
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import Accept, Ack, Begin, Blocks, Claim, Record, Verified
from kvcache.transfer.pull_settings import PullSettings
from kvcache.transfer.refusal import Refusal
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.transport import BlockReceiver, Transport

_REASONS_OF_A_PEER = (
    TransferFailure.REFUSED,
    TransferFailure.LAYOUT_MISMATCH,
    TransferFailure.EXPIRED,
    TransferFailure.ABORTED,
    TransferFailure.OTHER_VERSION,
)


class StaleRead(TransferError):
    """A one-sided read found other content: the peer may have given the blocks away. Asking again tells."""

    def __init__(self, text: str) -> None:
        super().__init__(TransferFailure.CORRUPT, text)


class Receiver:
    """Fills `blocks` from index `num_verified` on. What it got to know stays readable when `run` has raised."""

    def __init__(
        self,
        channel: Channel,
        memory: RegisteredMemory,
        settings: PullSettings,
        transports: Sequence[Transport],
        blocks: Sequence[int],
        num_verified: int,
    ) -> None:
        self.num_verified = num_verified
        self.transport: Transport | None = None  # what was agreed on
        self.wait_s = 0.0  # without anything to receive
        self._channel = channel
        self._memory = memory
        self._settings = settings
        self._transports = transports
        self._blocks = blocks

    def run(self, handle: KvHandle, deadline: float) -> bytes:
        """Returns the peer's record once it has confirmed its lease; `deadline` is for the handshake.

        Raises TransferError, and FrameError when the peer does not keep to the protocol.
        """
        transport, receiver = self._agree_on_transport(handle, deadline)
        while True:
            frame = self._next(self._settings.silence_timeout_s)
            if frame.type is FrameType.BLOCKS:
                self._receive_batch(Blocks.parse(frame.payload), transport, receiver)
            elif frame.type is FrameType.RECORD:
                return self._confirm(Record.parse(frame.payload))
            elif frame.type is not FrameType.PING:
                raise FrameError(f"{frame.type.name} from the peer, at {self._position()}")

    def _agree_on_transport(self, handle: KvHandle, deadline: float) -> tuple[Transport, BlockReceiver]:
        claim = Claim(
            token=handle.token,
            leg=handle.leg,
            epoch=handle.epoch,
            layout=self._settings.layout,
            num_skip=self.num_verified,
            kinds=frozenset(transport.kind for transport in self._transports),
        )
        if self._settings.secret is not None:
            claim = claim.prove(self._settings.secret)
        self._channel.send(claim.frame(), self._settings.connect_timeout_s)
        frame = self._next(max(deadline - time.monotonic(), 1e-3))
        if frame.type is not FrameType.ACCEPT:
            raise FrameError(f"{frame.type.name} instead of ACCEPT")
        offers = Accept.parse(frame.payload).offers
        for transport in self._transports:
            offer = offers.get(transport.kind)
            if offer is not None and transport.can_use(offer, self._memory):
                self.transport = transport
                self._send(Begin(transport.kind).frame())
                silence_timeout_s = self._settings.silence_timeout_s
                return transport, transport.receiver(self._channel, offer, self._memory, silence_timeout_s)
        raise TransferError(TransferFailure.UNREACHABLE, "no transport reaches the peer's blocks")

    def _receive_batch(self, batch: Blocks, transport: Transport, receiver: BlockReceiver) -> None:
        end = batch.first + len(batch.checksums)
        if batch.first != self.num_verified or end > len(self._blocks):
            raise FrameError(f"blocks {batch.first} to {end} at {self._position()}")
        blocks = self._blocks[batch.first : end]
        landing = self._memory.landing(blocks)
        receiver.receive(batch.told, landing)
        for index, checksum in enumerate(block_checksums(landing, self._memory.block_bytes)):
            if checksum != batch.checksums[index]:
                text = f"block {batch.first + index} is not what was sent"
                raise StaleRead(text) if transport.is_one_sided else TransferError(TransferFailure.CORRUPT, text)
        self._memory.write_in(blocks, landing)
        self.num_verified = end
        self._send(Verified(end).frame())

    def _confirm(self, record: Record) -> bytes:
        if not record.num_blocks == self.num_verified == len(self._blocks):
            raise FrameError(f"record for {record.num_blocks} blocks at {self._position()}")
        self._send(Ack(record.num_blocks).frame())
        while (frame := self._next(self._settings.silence_timeout_s)).type is not FrameType.RELEASED:
            if frame.type is not FrameType.PING:
                raise FrameError(f"{frame.type.name} instead of RELEASED")
        return record.record

    def _next(self, silence_s: float) -> Frame:
        """Returns the next frame; raises TransferError with the peer's reason when that is a refusal."""
        started = time.monotonic()
        frame = self._channel.receive(silence_s)
        self.wait_s += time.monotonic() - started
        if frame.type not in (FrameType.REFUSE, FrameType.ABORT):
            return frame
        why = Refusal.parse(frame.payload)
        if why.reason not in _REASONS_OF_A_PEER:
            raise FrameError(f"{frame.type.name} with {why.reason.name}")
        raise TransferError(why.reason, why.text)

    def _send(self, frame: Frame) -> None:
        self._channel.send(frame, self._settings.silence_timeout_s)

    def _position(self) -> str:
        return f"block {self.num_verified} of {len(self._blocks)}"
