"""One prompt's KV on its way into this pool.

    connect  a lost or silent peer is tried again, from the last verified block
    receive  batches as prefill completes them, each verified before it counts
    confirm  the peer's lease held until everything was read

Only a pull that returned has filled its blocks. After any error they hold nothing that may be used.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvcache.transfer.channel import Channel
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frames import FrameError, OtherVersion
from kvcache.transfer.handle import KvHandle, split_address
from kvcache.transfer.name_lookup import resolve
from kvcache.transfer.pull_settings import PullSettings
from kvcache.transfer.receiver import Receiver, StaleRead
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.transport import Transport

logger = logging.getLogger(__name__)

_WORTH_ANOTHER_CONNECTION = (TransferFailure.PEER_CLOSED, TransferFailure.TIMEOUT)


@dataclass(frozen=True)
class TransferResult:
    """`record` is the peer's hand-off record. `wait_s` of `duration_s` went by without anything to receive.

    `num_bytes` and `num_blocks_sent` are what was verified; the skipped blocks were here before.
    """

    record: bytes
    transport: str
    num_bytes: int
    num_blocks_sent: int
    num_blocks_skipped: int
    duration_s: float
    wait_s: float


class Pull:
    """Made by `TransferClient.pull`. `run` once, in a thread that may block; `cancel` from any thread."""

    def __init__(
        self,
        memory: RegisteredMemory,
        settings: PullSettings,
        handle: KvHandle,
        num_skip: int,
        blocks: Sequence[int],
    ) -> None:
        if not 0 <= num_skip <= len(blocks):
            raise ValueError(f"num_skip is {num_skip}, the prompt has {len(blocks)} blocks")
        self._memory = memory
        self._settings = settings
        self._handle = handle
        self._num_skip = num_skip
        self._blocks = blocks
        self._transports = settings.transports
        self._num_verified = num_skip
        self._wait_s = 0.0
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._channel: Channel | None = None

    def run(self) -> TransferResult:
        """Returns when every block and the record are here and the peer has confirmed its lease.

        Raises TransferError. Once this returned or raised nothing writes into the blocks any more.
        """
        if self._handle.layout != self._settings.layout:
            text = f"blocks of {self._handle.address} have another layout"
            raise TransferError(TransferFailure.LAYOUT_MISMATCH, text)
        started = time.monotonic()
        lost: TransferError | None = None
        for _ in range(self._settings.max_connections):
            try:
                transport, record = self._pull_over_one_connection()
            except TransferError as error:
                if self._is_cancelled:
                    raise TransferError(TransferFailure.CANCELLED, self._position()) from error
                if error.reason not in _WORTH_ANOTHER_CONNECTION and not isinstance(error, StaleRead):
                    raise error from lost
                lost = error
                logger.info("leg %d: %s at %s", self._handle.leg, error, self._position())
            else:
                num_sent = len(self._blocks) - self._num_skip
                num_bytes = num_sent * self._memory.block_bytes
                duration_s = time.monotonic() - started
                return TransferResult(
                    record, transport.name, num_bytes, num_sent, self._num_skip, duration_s, self._wait_s
                )
        assert lost is not None
        raise TransferError(lost.reason, f"{lost.text} at {self._position()}") from lost

    def cancel(self) -> None:
        """Makes `run` raise CANCELLED soon, unless it is done. Does not wait for it."""
        with self._lock:
            self._is_cancelled = True
            if self._channel is not None:
                self._channel.shutdown()

    def _pull_over_one_connection(self) -> tuple[Transport, bytes]:
        deadline = time.monotonic() + self._settings.connect_timeout_s
        with self._connected(deadline) as channel:
            receiver = Receiver(
                channel, self._memory, self._settings, self._transports, self._blocks, self._num_verified
            )
            try:
                record = receiver.run(self._handle, deadline)
            except OtherVersion as error:
                raise TransferError(TransferFailure.OTHER_VERSION, f"the peer has {error}") from error
            except FrameError as error:
                raise TransferError(TransferFailure.CORRUPT, str(error)) from error
            finally:
                self._learn(receiver)
            assert receiver.transport is not None
            return receiver.transport, record

    def _learn(self, receiver: Receiver) -> None:
        self._num_verified = receiver.num_verified
        self._wait_s += receiver.wait_s
        if receiver.transport is not None:
            # Another connection tries the others first: whatever went wrong, it may be this one's fault.
            others = [transport for transport in self._transports if transport is not receiver.transport]
            self._transports = (*others, receiver.transport)

    @contextmanager
    def _connected(self, deadline: float) -> Iterator[Channel]:
        """Holds a connection that `cancel` can reach from before it is made until it is closed."""
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
            channel = self._new_channel(family)
            try:
                channel.connect(address, max(deadline - time.monotonic(), 1e-3))
                return channel
            except OSError as error:
                self._let_go(channel)
                why = error
        raise TransferError(TransferFailure.UNREACHABLE, f"{self._handle.address}: {why}") from why

    def _new_channel(self, family: socket.AddressFamily) -> Channel:
        try:
            channel = Channel(socket.socket(family, socket.SOCK_STREAM), self._settings.tap)
        except OSError as error:
            raise TransferError(TransferFailure.BROKEN, f"no socket: {error}") from error
        with self._lock:
            if not self._is_cancelled:
                self._channel = channel
                return channel
        channel.close()
        raise TransferError(TransferFailure.CANCELLED, "before connecting")

    def _let_go(self, channel: Channel) -> None:
        with self._lock:
            self._channel = None
        channel.close()

    def _position(self) -> str:
        return f"block {self._num_verified} of {len(self._blocks)}"
