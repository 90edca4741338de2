"""The prefill side of one puller's connection: one thread, from ACCEPT to RELEASED."""

import logging
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.transfer.channel import Channel
from kvcache.transfer.counters import ConnectionOutcome, CounterSet
from kvcache.transfer.errors import TransferError
from kvcache.transfer.export import Export, ExportState
from kvcache.transfer.frames import MAX_BLOCKS_PER_FRAME, Frame, FrameError, FrameType
from kvcache.transfer.payloads import Accept, Ack, Begin, Claim, Record, Verified
from kvcache.transfer.refusal import Refusal
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.transport import BlockBatch, BlockSender, Transport
from kvcache.transfer.wakeup import Wakeup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SenderLimits:
    """`send_s` is for one batch, and so for how long a pin can last; a batch has one block or `batch_bytes`."""

    handshake_s: float
    ping_interval_s: float
    send_s: float
    batch_bytes: int


class Sender:
    """Serves `export` to the puller that made `claim`. `run` is the thread and closes everything it uses."""

    def __init__(
        self,
        channel: Channel,
        claim: Claim,
        export: Export,
        memory: RegisteredMemory,
        transports: Sequence[Transport],
        counters: CounterSet,
        limits: SenderLimits,
    ) -> None:
        """Owns `channel`, unless this raises OSError."""
        self._channel = channel
        self._claim = claim
        self._export = export
        self._memory = memory
        self._transports = transports
        self._counters = counters
        self._limits = limits
        self._wakeup = Wakeup()
        self._max_blocks = min(max(limits.batch_bytes // memory.block_bytes, 1), MAX_BLOCKS_PER_FRAME)
        self._num_sent = claim.num_skip
        self._num_verified = claim.num_skip
        self._has_sent_record = False

    @property
    def leg(self) -> int:
        return self._export.handle.leg

    def wake(self) -> None:
        self._wakeup.set()

    def cut(self) -> None:
        """Ends the connection from outside; `run` returns soon after."""
        self._channel.shutdown()

    def run(self) -> None:
        try:
            end = self._export.attach(self)
            if end is None:
                self._counters.add_connection(ConnectionOutcome.ACCEPTED)
                self._serve()
            else:
                self._counters.add_connection(ConnectionOutcome.REFUSED)
                self._end_with(Refusal.of_ended(end).frame(FrameType.REFUSE))
        except TransferError as error:
            self._counters.add_connection(ConnectionOutcome.LOST)
            logger.info("leg %d: puller lost: %s", self.leg, error)
        except FrameError as error:
            self._counters.add_connection(ConnectionOutcome.GARBAGE)
            logger.warning("leg %d: puller does not keep to the protocol: %s", self.leg, error)
        except Exception:
            logger.exception("leg %d: sending failed", self.leg)
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of everything. `run` does that itself, so this is for a sender that never ran."""
        self._export.detach(self)
        self._channel.close()
        self._wakeup.close()

    def _serve(self) -> None:
        transport = self._agree_on_transport()
        blocks = transport.sender(self._channel, self._memory, self._limits.send_s)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while True:
            state = self._export.state()
            if state.end is not None:
                self._end_with(Refusal.of_ended(state.end).frame(FrameType.ABORT))
                return
            has_sent = self._send_next(state, transport.name, blocks)
            events = poller.poll(0 if has_sent else self._limits.ping_interval_s * 1000)
            if not events and not has_sent:
                self._send(Frame(FrameType.PING))
            for descriptor, _ in events:
                if descriptor == self._wakeup.fileno():
                    self._wakeup.clear()
                elif self._hear():
                    return

    def _send_next(self, state: ExportState, transport: str, blocks: BlockSender) -> bool:
        """Sends the next batch or, after the last one, the record; False when there is nothing to send now."""
        if self._num_sent < state.num_blocks:
            self._send_batch(transport, blocks)
            return True
        if state.record is not None and not self._has_sent_record:
            self._send(Record(state.num_blocks, state.record).frame())
            self._has_sent_record = True
            return True
        return False

    def _agree_on_transport(self) -> Transport:
        offers: dict[int, bytes] = {}
        for transport in self._transports:
            if transport.kind in self._claim.kinds and (offer := transport.offer(self._memory)) is not None:
                offers[transport.kind] = offer
        self._send(Accept(offers).frame())
        frame = self._channel.receive(self._limits.handshake_s)
        if frame.type is not FrameType.BEGIN:
            raise FrameError(f"{frame.type.name} instead of BEGIN")
        kind = Begin.parse(frame.payload).kind
        if kind not in offers:
            raise FrameError(f"BEGIN with transport {kind}, which was not offered")
        return next(transport for transport in self._transports if transport.kind == kind)

    def _send_batch(self, transport: str, blocks: BlockSender) -> None:
        with self._export.pinned(self._num_sent, self._max_blocks) as batch:
            if batch:
                num_bytes = blocks.send(BlockBatch(self._num_sent, batch))
                self._counters.add_sent(transport, len(batch), num_bytes)
                self._num_sent += len(batch)

    def _hear(self) -> bool:
        """Takes one frame from the puller; True when the hand-off is over and the puller was told how."""
        frame = self._channel.receive(self._limits.handshake_s)
        if frame.type is FrameType.VERIFIED:
            num_verified = Verified.parse(frame.payload).num_blocks
            if not self._num_verified <= num_verified <= self._num_sent:
                raise FrameError(f"verified from {self._num_verified} to {num_verified} of {self._num_sent} sent")
            if num_verified > self._num_verified:
                self._num_verified = num_verified
                self._export.renew()
            return False
        if frame.type is not FrameType.ACK:
            raise FrameError(f"{frame.type.name} from a puller")
        num_acknowledged = Ack.parse(frame.payload).num_blocks
        if not self._has_sent_record or num_acknowledged != self._num_sent:
            raise FrameError(f"ACK of {num_acknowledged} blocks, {self._num_sent} were sent")
        if self._export.acknowledge(num_acknowledged):
            self._end_with(Frame(FrameType.RELEASED))
            return True
        # The lease is over but the lease clock has not said so yet.
        self._export.expire(time.monotonic())
        return False

    def _end_with(self, frame: Frame) -> None:
        self._send(frame)
        self._channel.finish(self._limits.handshake_s)

    def _send(self, frame: Frame) -> None:
        self._channel.send(frame, self._limits.send_s)
