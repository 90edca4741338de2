"""One prompt's KV on its way into this pool.

    connect  HELLO, ACCEPT or REFUSE, BEGIN; a lost or silent peer is tried again, from the last verified block
    receive  batches as prefill completes them, each verified before it counts
    confirm  RECORD, ACK, RELEASED: P's lease held until everything was read

Only a pull that returned has filled its blocks. After any error they hold nothing that may be used.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frames import Frame, FrameError, FrameType, OtherVersion
from kvcache.transfer.handle import KvHandle, split_address
from kvcache.transfer.name_lookup import resolve
from kvcache.transfer.payloads import Accept, Ack, Begin, Offer, PullHello, PullProgress, Record, Refusal
from kvcache.transfer.transports.host_identity import HostIdentity
from kvcache.transfer.transports.tcp import TcpReceiver
from kvcache.transfer.transports.transport import BlockReceiver, TransportKind
from kvcache.transfer.transports.vm_read import VmReadReceiver, can_read

logger = logging.getLogger(__name__)

_WORTH_ANOTHER_CONNECTION = (TransferFailure.PEER_CLOSED, TransferFailure.TIMEOUT)
_REASONS_OF_A_PEER = (
    TransferFailure.REFUSED,
    TransferFailure.LAYOUT_MISMATCH,
    TransferFailure.EXPIRED,
    TransferFailure.ABORTED,
    TransferFailure.OTHER_VERSION,
)


@dataclass(frozen=True)
class PullSettings:
    layout: bytes
    transports: frozenset[TransportKind]
    host: HostIdentity | None
    connect_timeout_s: float
    silence_timeout_s: float
    legs: int
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TransferResult:
    """`record` is P's hand-off record. `wait_s` of `duration_s` went by without anything to receive.

    `num_bytes` and `num_blocks_sent` are what was verified; the skipped blocks were here before.
    """

    record: bytes
    transport: TransportKind
    num_bytes: int
    num_blocks_sent: int
    num_blocks_skipped: int
    duration_s: float
    wait_s: float


class _StaleRead(TransferError):
    """A one-sided read found other content: P may have given the blocks away. Asking again tells."""

    def __init__(self, text: str) -> None:
        super().__init__(TransferFailure.CORRUPT, text)


class Pull:
    """Made by `TransferClient.pull`. `run` once, in a thread that may block; `cancel` from any thread."""

    def __init__(
        self,
        memory: PoolMemory,
        settings: PullSettings,
        handle: KvHandle,
        num_skip: int,
        blocks: Sequence[int],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        if not 0 <= num_skip <= len(blocks):
            raise ValueError(f"num_skip is {num_skip}, the prompt has {len(blocks)} blocks")
        self._memory = memory
        self._settings = settings
        self._handle = handle
        self._num_skip = num_skip
        self._blocks = blocks
        self._on_progress = on_progress
        self._transports = settings.transports
        self._num_verified = num_skip
        self._wait_s = 0.0
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._channel: Channel | None = None

    def run(self) -> TransferResult:
        """Blocks until every block and the record are here and P confirmed its lease.

        Raises TransferError. Once this returned or raised nothing writes into the blocks any more.
        """
        started = time.monotonic()
        lost: TransferError | None = None
        for _ in range(self._settings.legs):
            try:
                transport, record = self._pull_over_one_connection()
            except TransferError as error:
                if self._is_cancelled:
                    raise TransferError(TransferFailure.CANCELLED, self._position()) from error
                if error.reason not in _WORTH_ANOTHER_CONNECTION and not isinstance(error, _StaleRead):
                    raise error from lost
                lost = error
                # Whatever was wrong, the plainest transport has the fewest ways to fail again.
                self._transports = self._transports & {TransportKind.TCP} or self._transports
                logger.info("leg %d: %s at %s", self._handle.leg, error, self._position())
            else:
                num_sent = len(self._blocks) - self._num_skip
                num_bytes = num_sent * self._memory.layout.block_bytes
                duration_s = time.monotonic() - started
                return TransferResult(record, transport, num_bytes, num_sent, self._num_skip, duration_s, self._wait_s)
        assert lost is not None
        raise TransferError(lost.reason, f"{lost.text} at {self._position()}") from lost

    def cancel(self) -> None:
        """Makes `run` raise CANCELLED soon, unless it is done. Does not wait for it."""
        with self._lock:
            self._is_cancelled = True
            if self._channel is not None:
                self._channel.shutdown()

    def _pull_over_one_connection(self) -> tuple[TransportKind, bytes]:
        if self._handle.layout != self._settings.layout:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH, f"blocks of {self._handle.address} have another layout"
            )
        deadline = time.monotonic() + self._settings.connect_timeout_s
        with self._connected(deadline) as channel:
            try:
                transport, receiver = self._agree_on_transport(channel, deadline)
                return transport, self._receive_all(channel, transport, receiver)
            except OtherVersion as error:
                raise TransferError(TransferFailure.OTHER_VERSION, f"the peer has {error}") from error
            except FrameError as error:
                raise TransferError(TransferFailure.CORRUPT, str(error)) from error

    def _agree_on_transport(self, channel: Channel, deadline: float) -> tuple[TransportKind, BlockReceiver]:
        hello = PullHello(
            token=self._handle.token,
            leg=self._handle.leg,
            epoch=self._handle.epoch,
            layout=self._settings.layout,
            num_skip=self._num_verified,
            host=self._settings.host,
            transports=self._transports,
        )
        if self._settings.secret is not None:
            hello = hello.prove(self._settings.secret)
        channel.send(hello.frame(), self._settings.connect_timeout_s)
        frame = self._next(channel, max(deadline - time.monotonic(), 1e-3))
        if frame.type is not FrameType.ACCEPT:
            raise FrameError(f"{frame.type.name} instead of ACCEPT")
        accept = Accept.parse(frame.payload)
        if TransportKind.VM_READ in self._transports and accept.process_id is not None and can_read(accept):
            self._send(channel, Begin(TransportKind.VM_READ).frame())
            receiver = VmReadReceiver(accept.process_id, self._memory.layout.block_bytes)
            return TransportKind.VM_READ, receiver
        if TransportKind.TCP not in self._transports:
            raise TransferError(TransferFailure.UNREACHABLE, "no transport reaches the peer's blocks")
        self._send(channel, Begin(TransportKind.TCP).frame())
        return TransportKind.TCP, TcpReceiver(channel, self._settings.silence_timeout_s)

    def _receive_all(self, channel: Channel, transport: TransportKind, receiver: BlockReceiver) -> bytes:
        """Everything after BEGIN; returns the record."""
        expected = FrameType.READY if transport is TransportKind.VM_READ else FrameType.BLOCKS
        while True:
            frame = self._next(channel, self._settings.silence_timeout_s)
            if frame.type is expected:
                self._receive_batch(channel, Offer.parse(frame), receiver)
            elif frame.type is FrameType.RECORD:
                return self._confirm(channel, Record.parse(frame.payload))
            elif frame.type is not FrameType.PING:
                raise FrameError(f"{frame.type.name} from the peer, at {self._position()}")

    def _receive_batch(self, channel: Channel, offer: Offer, receiver: BlockReceiver) -> None:
        end = offer.first + len(offer.checksums)
        if offer.first != self._num_verified or end > len(self._blocks):
            raise FrameError(f"blocks {offer.first} to {end} at {self._position()}")
        if self._is_cancelled:
            raise TransferError(TransferFailure.CANCELLED, self._position())
        blocks = self._blocks[offer.first : end]
        landing = self._memory.landing(blocks)
        receiver.receive(offer.addresses, landing)
        for index, checksum in enumerate(block_checksums(landing, self._memory.layout.block_bytes)):
            if checksum != offer.checksums[index]:
                text = f"block {offer.first + index} is not what was sent"
                raise _StaleRead(text) if offer.addresses else TransferError(TransferFailure.CORRUPT, text)
        self._memory.write_in(blocks, landing)
        self._num_verified = end
        self._send(channel, PullProgress(end).frame())
        if self._on_progress is not None:
            self._on_progress(end)

    def _confirm(self, channel: Channel, record: Record) -> bytes:
        if not record.num_blocks == self._num_verified == len(self._blocks):
            raise FrameError(f"record for {record.num_blocks} blocks at {self._position()}")
        self._send(channel, Ack(record.num_blocks).frame())
        while (frame := self._next(channel, self._settings.silence_timeout_s)).type is not FrameType.RELEASED:
            if frame.type is not FrameType.PING:
                raise FrameError(f"{frame.type.name} instead of RELEASED")
        return record.record

    def _next(self, channel: Channel, silence_s: float) -> Frame:
        """The next frame that is not a refusal; raises TransferError with the peer's reason for one that is."""
        started = time.monotonic()
        frame = channel.receive(silence_s)
        self._wait_s += time.monotonic() - started
        if frame.type not in (FrameType.REFUSE, FrameType.ABORT):
            return frame
        why = Refusal.parse(frame.payload)
        if why.reason not in _REASONS_OF_A_PEER:
            raise FrameError(f"{frame.type.name} with {why.reason.name}")
        raise TransferError(why.reason, why.text)

    def _send(self, channel: Channel, frame: Frame) -> None:
        channel.send(frame, self._settings.silence_timeout_s)

    @contextmanager
    def _connected(self, deadline: float) -> Iterator[Channel]:
        """A connection that `cancel` can reach from before it is made until it is closed."""
        channel = self._connect(deadline)
        try:
            yield channel
        finally:
            self._let_go(channel)

    def _connect(self, deadline: float) -> Channel:
        """Tries the addresses of the host in turn. Raises TransferError with UNREACHABLE."""
        try:
            candidates = resolve(*split_address(self._handle.address), deadline)
        except OSError as error:
            raise TransferError(TransferFailure.UNREACHABLE, f"{self._handle.address}: {error}") from error
        why: OSError | None = None
        for family, address in candidates:
            try:
                channel = Channel(socket.socket(family, socket.SOCK_STREAM))
            except OSError as error:
                raise TransferError(TransferFailure.BROKEN, f"no socket: {error}") from error
            with self._lock:
                self._channel = channel
                is_cancelled = self._is_cancelled
            try:
                if is_cancelled:
                    raise TransferError(TransferFailure.CANCELLED, "before connecting")
                channel.connect(address, max(deadline - time.monotonic(), 1e-3))
                return channel
            except OSError as error:
                self._let_go(channel)
                why = error
            except TransferError:
                self._let_go(channel)
                raise
        raise TransferError(TransferFailure.UNREACHABLE, f"{self._handle.address}: {why}") from why

    def _let_go(self, channel: Channel) -> None:
        with self._lock:
            self._channel = None
        channel.close()

    def _position(self) -> str:
        return f"block {self._num_verified} of {len(self._blocks)}"
