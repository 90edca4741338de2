"""The prefill side of one puller's connection: one thread, from ACCEPT to RELEASED."""

import logging
import select
import time
from dataclasses import dataclass

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.channel import Channel
from kvcache.transfer.counters import CounterSet
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ExportEnd, ExportState, ReleaseReason
from kvcache.transfer.frames import MAX_BLOCKS_PER_FRAME, Frame, FrameError, FrameType
from kvcache.transfer.payloads import Accept, Ack, Begin, PullHello, PullProgress, Record, Refusal
from kvcache.transfer.transports.host_identity import HostIdentity
from kvcache.transfer.transports.tcp import TcpSender
from kvcache.transfer.transports.transport import BlockBatch, BlockSender, TransportKind
from kvcache.transfer.transports.vm_read import Nonce, VmReadSender
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
    """Serves `export` to the puller that said `hello`. `run` is the thread and closes everything it uses."""

    def __init__(
        self,
        channel: Channel,
        hello: PullHello,
        export: Export,
        memory: PoolMemory,
        host: HostIdentity | None,
        nonce: Nonce,
        counters: CounterSet,
        limits: SenderLimits,
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._export = export
        self._memory = memory
        self._host = host
        self._nonce = nonce
        self._counters = counters
        self._limits = limits
        self._wakeup = Wakeup()
        self._max_blocks = min(max(limits.batch_bytes // memory.layout.block_bytes, 1), MAX_BLOCKS_PER_FRAME)
        self._num_sent = hello.num_skip
        self._num_verified = hello.num_skip
        self._has_sent_record = False

    def wake(self) -> None:
        self._wakeup.set()

    def cut(self) -> None:
        """Ends the connection from outside; `run` returns soon after."""
        self._channel.shutdown()

    def run(self) -> None:
        try:
            end = self._export.attach(self)
            if end is None:
                self._counters.add_accepted()
                self._serve()
            else:
                self._counters.add_refused()
                self._say_farewell(refusal(end).frame(FrameType.REFUSE))
        except TransferError as error:
            self._counters.add_lost()
            logger.info("leg %d: puller lost: %s", self._export.handle.leg, error)
        except FrameError as error:
            self._counters.add_garbage()
            logger.warning("leg %d: puller does not keep to the protocol: %s", self._export.handle.leg, error)
        except Exception:
            logger.exception("leg %d: sending failed", self._export.handle.leg)
        finally:
            self.close()

    def close(self) -> None:
        """Only for a sender whose `run` will not run; `run` does it itself."""
        self._export.detach(self)
        self._channel.close()
        self._wakeup.close()

    def _serve(self) -> None:
        kind, blocks = self._agree_on_transport()
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while True:
            state = self._export.state()
            if state.end is not None:
                self._say_farewell(refusal(state.end).frame(FrameType.ABORT))
                return
            has_sent = self._send_next(state, kind, blocks)
            events = poller.poll(0 if has_sent else self._limits.ping_interval_s * 1000)
            if not events and not has_sent:
                self._send(Frame(FrameType.PING))
            for descriptor, _ in events:
                if descriptor == self._wakeup.fileno():
                    self._wakeup.clear()
                elif self._hear():
                    return

    def _send_next(self, state: ExportState, kind: TransportKind, blocks: BlockSender) -> bool:
        """Sends the next batch or, after the last one, the record; False when there is nothing to send now."""
        if self._num_sent < state.num_blocks:
            self._send_batch(kind, blocks)
            return True
        if state.record is not None and not self._has_sent_record:
            self._send(Record(state.num_blocks, state.record).frame())
            self._has_sent_record = True
            return True
        return False

    def _agree_on_transport(self) -> tuple[TransportKind, BlockSender]:
        can_try_vm_read = (
            TransportKind.VM_READ in self._hello.transports
            and self._memory.is_host
            and self._host is not None
            and self._host == self._hello.host
        )
        accept = self._nonce.accept()
        self._send((accept if can_try_vm_read else Accept(None, 0, accept.nonce)).frame())
        frame = self._channel.receive(self._limits.handshake_s)
        if frame.type is not FrameType.BEGIN:
            raise FrameError(f"{frame.type.name} instead of BEGIN")
        kind = Begin.parse(frame.payload).transport
        if kind is TransportKind.VM_READ and can_try_vm_read:
            return kind, VmReadSender(self._channel, self._memory, self._limits.send_s)
        if kind is TransportKind.TCP:
            return kind, TcpSender(self._channel, self._memory, self._limits.send_s)
        raise FrameError(f"BEGIN with {kind.name}, which was not offered")

    def _send_batch(self, kind: TransportKind, blocks: BlockSender) -> None:
        with self._export.pinned(self._num_sent, self._max_blocks) as batch:
            if batch:
                num_bytes = blocks.send(BlockBatch(self._num_sent, batch))
                self._counters.add_sent(kind, len(batch), num_bytes)
                self._num_sent += len(batch)

    def _hear(self) -> bool:
        """Takes one frame from D; True when the hand-off is over and D was told how."""
        frame = self._channel.receive(self._limits.handshake_s)
        if frame.type is FrameType.PROGRESS:
            num_verified = PullProgress.parse(frame.payload).num_blocks
            if not self._num_verified <= num_verified <= self._num_sent:
                raise FrameError(f"progress from {self._num_verified} to {num_verified} of {self._num_sent} sent")
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
            self._say_farewell(Frame(FrameType.RELEASED))
            return True
        # The lease is over but the acceptor's thread has not said so yet.
        self._export.expire(time.monotonic())
        return False

    def _say_farewell(self, frame: Frame) -> None:
        self._send(frame)
        self._channel.finish(self._limits.handshake_s)

    def _send(self, frame: Frame) -> None:
        self._channel.send(frame, self._limits.send_s)


def refusal(end: ExportEnd) -> Refusal:
    """What a puller is told about an export that has ended."""
    if end.reason is ReleaseReason.EXPIRED:
        return Refusal(TransferFailure.EXPIRED, end.text)
    if end.reason is ReleaseReason.ABORTED:
        return Refusal(TransferFailure.ABORTED, end.text)
    if end.reason is ReleaseReason.ACKNOWLEDGED:
        return Refusal(TransferFailure.REFUSED, "hand-off was acknowledged before")
    return Refusal(TransferFailure.REFUSED, "unknown hand-off")
