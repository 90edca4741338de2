"""The prefill side of the transfer port: opens exports and serves them to whoever holds their handle."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from secrets import randbits, token_bytes

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.acceptor import Acceptor
from kvcache.transfer.bounded_log import BoundedLog
from kvcache.transfer.channel import Channel
from kvcache.transfer.counters import CounterSet, ServerCounters
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.frames import FrameType
from kvcache.transfer.handle import LAYOUT_BYTES, TOKEN_BYTES, KvHandle, join_address
from kvcache.transfer.payloads import PullHello, Refusal
from kvcache.transfer.sender import Sender, SenderLimits, refusal
from kvcache.transfer.transports.host_identity import this_host
from kvcache.transfer.transports.vm_read import Nonce

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_SEND_BUFFER_BYTES = 4 << 20
_WILDCARDS = ("", "0.0.0.0", "::")


class TransferServer:
    """`start` binds and begins to serve; `close` ends every export, every connection and every thread.

    `epoch` names this life of the worker; a random one is taken when it is absent. All times are in seconds:
    `lease_s` from the seal or the puller's last progress to the end of an export, `handshake_timeout_s` for a
    pending connection's HELLO, `ping_interval_s` between signs of life to a waiting puller, `send_timeout_s` for a
    batch of `batch_bytes` (at least one block), which is also how long a release can be delayed by a puller that
    stopped reading.
    """

    def __init__(
        self,
        memory: PoolMemory,
        layout_fingerprint: bytes,
        host: str,
        port: int,
        *,
        advertise_host: str | None = None,
        epoch: int | None = None,
        lease_s: float = 30.0,
        max_connections: int = 256,
        handshake_timeout_s: float = 2.0,
        ping_interval_s: float = 1.0,
        send_timeout_s: float = 4.0,
        batch_bytes: int = 4 << 20,
        secrets: Sequence[bytes] = (),
    ) -> None:
        """With `secrets` only pullers are served that know one of them.

        Raises ValueError for settings that cannot work, such as a wildcard host with nothing to advertise.
        """
        if len(layout_fingerprint) != LAYOUT_BYTES:
            raise ValueError(f"layout_fingerprint has {LAYOUT_BYTES} bytes, got {len(layout_fingerprint)}")
        if advertise_host is None and host.strip("[]") in _WILDCARDS:
            raise ValueError(f"host {host!r} cannot be advertised; name an advertise_host")
        if min(lease_s, handshake_timeout_s, ping_interval_s, send_timeout_s) <= 0:
            raise ValueError("lease_s, handshake_timeout_s, ping_interval_s and send_timeout_s must be above 0")
        if max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, got {max_connections}")
        self.epoch = randbits(63) if epoch is None else epoch
        self._memory = memory
        self._layout = layout_fingerprint
        self._host = host.strip("[]")
        self._port = port
        self._advertise_host = (advertise_host or host).strip("[]")
        self._lease_s = lease_s
        self._max_connections = max_connections
        self._handshake_timeout_s = handshake_timeout_s
        self._limits = SenderLimits(handshake_timeout_s, ping_interval_s, send_timeout_s, batch_bytes)
        self._secrets = tuple(secrets)
        self._table = ExportTable()
        self._counters = CounterSet()
        self._log = BoundedLog(logger)
        self._nonce = Nonce()
        self._host_identity = this_host()
        self._lock = threading.Lock()
        self._senders: dict[Sender, threading.Thread] = {}  # those that ended leave when the next one starts
        self._is_closed = False
        self._address: str | None = None
        self._acceptor: tuple[Acceptor, threading.Thread] | None = None

    def start(self) -> None:
        """Binds; port 0 takes a free one. Raises OSError when the address cannot be had."""
        assert self._acceptor is None, "started twice"
        listening = _listen(self._host, self._port)
        self._address = join_address(self._advertise_host, listening.getsockname()[1])
        acceptor = Acceptor(
            listening,
            self._table,
            self._counters,
            self._admit,
            self._log,
            lease_s=self._lease_s,
            handshake_timeout_s=self._handshake_timeout_s,
            max_pending=self._max_connections,
        )
        thread = threading.Thread(target=acceptor.run, name="kv-transfer-acceptor", daemon=True)
        self._acceptor = (acceptor, thread)
        thread.start()

    @property
    def address(self) -> str:
        """host:port that pullers use: the port that was bound, at the advertised host."""
        assert self._address is not None, "not started"
        return self._address

    @property
    def counters(self) -> ServerCounters:
        return self._counters.read(len(self._table), self._num_connections())

    def open(self, leg: int, on_release: Callable[[ReleaseReason], None]) -> Export:
        """A new export with a handle of its own.

        `on_release` is called exactly once, from any thread, when the export is over and none of its blocks is
        read any more, possibly within `abort`; it must not block. Raises RuntimeError on a closed server.
        """
        handle = KvHandle(self.address, token_bytes(TOKEN_BYTES), leg, self.epoch, self._layout, self._lease_s)

        def release(reason: ReleaseReason) -> None:
            self._counters.add_released(reason)
            on_release(reason)

        export = Export(handle, self._lease_s, release, self._table.retire)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("transfer server is closed")
            self._table.add(export)
        return export

    def close(self) -> None:
        """Ends all exports as CLOSED and joins all threads; every `on_release` has been called then. Idempotent."""
        with self._lock:
            self._is_closed = True
            acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor[0].stop()
            acceptor[1].join()
        for export in self._table.live():
            export.end(ReleaseReason.CLOSED, "server closed")
        with self._lock:
            senders, self._senders = self._senders, {}
        for sender, thread in senders.items():
            sender.cut()
            thread.join()

    def _admit(self, connected: socket.socket, hello: PullHello) -> None:
        """Called by the acceptor's thread, and so never after `close` has joined it."""
        try:
            channel = Channel(connected)
        except OSError:
            connected.close()
            return
        export = self._table.find(hello)
        refusal = self._refusal(hello, export)
        if export is not None and refusal is None:
            self._start_sender(channel, hello, export)
            return
        assert refusal is not None
        self._counters.add_refused()
        self._log.warning(f"puller of leg {hello.leg}", refusal.text)
        # HELLO was read to its end and the socket is fresh: this neither blocks nor resets the connection.
        with contextlib.suppress(TransferError):
            channel.send(refusal.frame(FrameType.REFUSE), timeout_s=0.1)
        channel.close()

    def _refusal(self, hello: PullHello, export: Export | None) -> Refusal | None:
        """None when the puller may have the export. Whoever lacks the token learns nothing else."""
        if self._secrets and not hello.is_proven(self._secrets):
            return Refusal(TransferFailure.REFUSED, "the puller does not know this cluster's secret")
        if export is None:
            return Refusal(TransferFailure.REFUSED, "unknown hand-off")
        if (end := export.state().end) is not None:
            return refusal(end)
        if hello.layout != self._layout:
            return Refusal(TransferFailure.LAYOUT_MISMATCH, "blocks here have another layout")
        if self._num_connections() >= self._max_connections:
            return Refusal(TransferFailure.REFUSED, f"{self._max_connections} transfers are running")
        return None

    def _start_sender(self, channel: Channel, hello: PullHello, export: Export) -> None:
        sender = Sender(
            channel, hello, export, self._memory, self._host_identity, self._nonce, self._counters, self._limits
        )

        thread = threading.Thread(target=sender.run, name=f"kv-transfer-send-{export.handle.leg}", daemon=True)
        with self._lock:
            self._senders = {sender: thread for sender, thread in self._senders.items() if thread.is_alive()}
            try:
                thread.start()
            except RuntimeError:
                logger.exception("no thread for leg %d", export.handle.leg)
                sender.close()
            else:
                self._senders[sender] = thread

    def _num_connections(self) -> int:
        with self._lock:
            return sum(thread.is_alive() for thread in self._senders.values())


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _can_have_buffer(family, _SEND_BUFFER_BYTES):
            # Accepted connections inherit it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _can_have_buffer(family: int, num_bytes: int) -> bool:
    """Whether the system grants a send buffer of that size. A clamped one is worse than none: it ends autotuning."""
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, num_bytes)
        return trial.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= num_bytes
