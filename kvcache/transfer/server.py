"""The prefill side of the transfer port: opens exports and serves them to whoever holds their handle."""

import contextlib
import logging
import resource
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from secrets import randbits, token_bytes

from kvcache.transfer.acceptor import Acceptor
from kvcache.transfer.admission import Admission
from kvcache.transfer.channel import Channel
from kvcache.transfer.counters import ConnectionOutcome, CounterSet, ServerCounters
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.frames import FrameType
from kvcache.transfer.handle import LAYOUT_BYTES, TOKEN_BYTES, KvHandle, join_address
from kvcache.transfer.lease_clock import LeaseClock
from kvcache.transfer.listening_socket import listen
from kvcache.transfer.payloads import Claim
from kvcache.transfer.port_thread import PortThread
from kvcache.transfer.refusal import Refusal
from kvcache.transfer.refusal_log import RefusalLog
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.sender import Sender, SenderLimits
from kvcache.transfer.sender_threads import SenderThreads
from kvcache.transfer.transports.table import TRANSPORTS
from kvcache.transfer.transports.transport import Transport

logger = logging.getLogger(__name__)

_WILDCARDS = ("", "0.0.0.0", "::")
_PENDING_SHARE = 8  # connections without a claim may cost one descriptor in so many


class TransferServer:
    """`start` binds and begins to serve; `close` ends every export, every connection and every thread.

    `epoch` names this life of the worker; a random one is taken when it is absent. All times are in seconds:
    `lease_s` from the seal or the puller's last progress to the end of an export, `handshake_timeout_s` for a
    pending connection's claim, `ping_interval_s` between signs of life to a waiting puller, `send_timeout_s` for a
    batch of `batch_bytes` (at least one block), which is also how long a release can be delayed by a puller that
    stopped reading. `death` gets the error that ended a thread the port cannot do without.
    """

    def __init__(
        self,
        memory: RegisteredMemory,
        layout_fingerprint: bytes,
        host: str,
        port: int,
        *,
        advertise_host: str | None = None,
        epoch: int | None = None,
        transports: Sequence[Transport] = TRANSPORTS,
        lease_s: float = 30.0,
        max_connections: int = 256,
        max_pending: int = 256,
        handshake_timeout_s: float = 2.0,
        ping_interval_s: float = 1.0,
        send_timeout_s: float = 4.0,
        batch_bytes: int = 4 << 20,
        secrets: Sequence[bytes] = (),
        tap: FrameTap | None = None,
    ) -> None:
        """Serves only pullers that know one of the `secrets`, if there are any.

        Raises ValueError for settings that cannot work, such as a wildcard host with nothing to advertise.
        """
        if len(layout_fingerprint) != LAYOUT_BYTES:
            raise ValueError(f"layout_fingerprint has {LAYOUT_BYTES} bytes, got {len(layout_fingerprint)}")
        if advertise_host is None and host.strip("[]") in _WILDCARDS:
            raise ValueError(f"host {host!r} cannot be advertised; name an advertise_host")
        if min(lease_s, handshake_timeout_s, ping_interval_s, send_timeout_s) <= 0:
            raise ValueError("lease_s, handshake_timeout_s, ping_interval_s and send_timeout_s must be above 0")
        if min(max_connections, max_pending) < 1:
            raise ValueError(f"max_connections and max_pending must be at least 1: {max_connections}, {max_pending}")
        self.epoch = randbits(63) if epoch is None else epoch
        self.death: Future[None] = Future()
        self._memory = memory
        self._layout = layout_fingerprint
        self._host = host.strip("[]")
        self._port = port
        self._advertise_host = (advertise_host or host).strip("[]")
        self._transports = transports
        self._lease_s = lease_s
        self._max_pending = max_pending
        self._limits = SenderLimits(handshake_timeout_s, ping_interval_s, send_timeout_s, batch_bytes)
        self._tap = tap
        self._table = ExportTable()
        self._admission = Admission(self._table, layout_fingerprint, secrets, max_connections)
        self._counters = CounterSet(transport.name for transport in transports)
        self._log = RefusalLog(logger)
        self._senders = SenderThreads()
        self._lock = threading.Lock()
        self._is_closed = False
        self._address: str | None = None
        self._running: list[tuple[Acceptor | LeaseClock, PortThread]] = []

    def start(self) -> None:
        """Binds; port 0 takes a free one. Raises OSError when the address cannot be had."""
        assert self._address is None, "started twice"
        listening = listen(self._host, self._port)
        try:
            acceptor = Acceptor(
                listening,
                self._counters,
                self._admit,
                self._log,
                handshake_timeout_s=self._limits.handshake_s,
                max_pending=min(self._max_pending, _affordable_pending()),
            )
        except OSError:
            listening.close()
            raise
        self._address = join_address(self._advertise_host, listening.getsockname()[1])
        lease_clock = LeaseClock(self._table, self._lease_s)
        self._running = [
            (acceptor, PortThread("kv-transfer-acceptor", acceptor.run, self.death)),
            (lease_clock, PortThread("kv-transfer-leases", lease_clock.run, self.death)),
        ]
        for _, thread in self._running:
            thread.start()

    @property
    def address(self) -> str:
        """What pullers connect to, host:port: the port that was bound, at the advertised host."""
        assert self._address is not None, "not started"
        return self._address

    @property
    def counters(self) -> ServerCounters:
        return self._counters.read(len(self._table), self._senders.num_running)

    def open(self, leg: int, on_release: Callable[[ReleaseReason], None]) -> Export:
        """Makes an export with a handle of its own.

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
            running, self._running = self._running, []
        for part, thread in running:
            if thread.is_alive():
                part.stop()
            thread.join()
        for export in self._table.live():
            export.end(ReleaseReason.CLOSED, "server closed")
        self._senders.end()

    def _admit(self, connected: socket.socket, claim: Claim) -> None:
        """Called by the acceptor's thread, and so never after `close` has joined it."""
        try:
            channel = Channel(connected, self._tap)
        except OSError:
            connected.close()
            return
        verdict = self._admission.judge(claim, self._senders.num_running)
        if isinstance(verdict, Export):
            try:
                sender = Sender(channel, claim, verdict, self._memory, self._transports, self._counters, self._limits)
            except OSError as error:
                verdict = _no_room(error)
            else:
                self._start(sender, channel, claim)
                return
        self._refuse(channel, claim, verdict)

    def _start(self, sender: Sender, channel: Channel, claim: Claim) -> None:
        try:
            self._senders.start(sender)
        except RuntimeError as error:
            self._refuse(channel, claim, _no_room(error))
            sender.close()

    def _refuse(self, channel: Channel, claim: Claim, refusal: Refusal) -> None:
        self._counters.add_connection(ConnectionOutcome.REFUSED)
        self._log.note(f"puller of leg {claim.leg}", refusal.text)
        # The claim was read to its end and the socket is fresh: this neither blocks nor resets the connection.
        with contextlib.suppress(TransferError):
            channel.send(refusal.frame(FrameType.REFUSE), timeout_s=0.1)
        channel.close()


def _no_room(error: Exception) -> Refusal:
    return Refusal(TransferFailure.REFUSED, f"no room for a transfer: {error}")


def _affordable_pending() -> int:
    """Says how many connections without a claim leave descriptors for everything else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(limit // _PENDING_SHARE, 1) if limit != resource.RLIM_INFINITY else 1 << 30
