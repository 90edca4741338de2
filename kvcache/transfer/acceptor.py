"""Everything about a connection before it has proven to be a puller.

One thread accepts and reads HELLOs without blocking, so that pending ones cost a descriptor for a short time and never
a thread. The same thread ends leases that are over.
"""

import contextlib
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcache.transfer.bounded_log import BoundedLog
from kvcache.transfer.counters import CounterSet
from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.frames import HEADER_BYTES, MAGIC, FrameError, FrameType, Header, OtherVersion
from kvcache.transfer.payloads import HELLO_PAYLOAD_BYTES, PullHello, Refusal
from kvcache.transfer.wakeup import Wakeup

_HELLO_BYTES = HEADER_BYTES + HELLO_PAYLOAD_BYTES
_ACCEPTS_PER_ROUND = 64
_MAX_UNREAD_BYTES = 4096
_REST_WITHOUT_DESCRIPTORS_S = 0.1


@dataclass
class PendingConnection:
    """A connection that has not said HELLO yet. `deadline` on the monotonic clock."""

    socket: socket.socket
    peer: str
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Acceptor:
    """`run` is the thread. `admit` gets the socket of every HELLO, owns it from then on, and does not block."""

    def __init__(
        self,
        listening: socket.socket,
        table: ExportTable,
        counters: CounterSet,
        admit: Callable[[socket.socket, PullHello], None],
        log: BoundedLog,
        *,
        lease_s: float,
        handshake_timeout_s: float,
        max_pending: int,
    ) -> None:
        self._listening = listening
        self._table = table
        self._counters = counters
        self._admit = admit
        self._log = log
        self._lease_s = lease_s
        self._handshake_timeout_s = handshake_timeout_s
        self._max_pending = max_pending
        self._wakeup = Wakeup()
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._pending: OrderedDict[int, PendingConnection] = OrderedDict()  # by descriptor; oldest first
        self._rest_until: float | None = None
        listening.setblocking(False)

    def stop(self) -> None:
        """Makes `run` return soon; from any thread, while `run` has not returned."""
        self._is_stopping = True
        self._wakeup.set()

    def run(self) -> None:
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._selector.register(self._listening, selectors.EVENT_READ)
        try:
            while not self._is_stopping:
                self._round()
        finally:
            for connection in list(self._pending.values()):
                self._forget(connection).close()
            self._selector.close()
            self._listening.close()
            self._wakeup.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.data, PendingConnection):
                self._read_hello(key.data)
        now = time.monotonic()
        self._table.expire(now)
        while self._pending and (oldest := next(iter(self._pending.values()))).deadline <= now:
            self._turn_away(oldest, f"no HELLO within {self._handshake_timeout_s:g} s")
        if self._rest_until is not None and self._rest_until <= now:
            self._rest_until = None
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _timeout_s(self) -> float:
        """Until the next deadline. A lease that begins later ends no sooner than one lease from now."""
        now = time.monotonic()
        deadlines = [now + self._lease_s]
        if (lease := self._table.next_deadline()) is not None:
            deadlines.append(lease)
        if self._pending:
            deadlines.append(next(iter(self._pending.values())).deadline)
        if self._rest_until is not None:
            deadlines.append(self._rest_until)
        return max(min(deadlines) - now, 0.0)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                connected, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._rest(error)
                return
            connected.setblocking(False)
            connection = PendingConnection(connected, str(address[0]), time.monotonic() + self._handshake_timeout_s)
            if len(self._pending) >= self._max_pending:
                # A puller says HELLO at once: the one that has been silent longest is the least likely to be one.
                self._turn_away(next(iter(self._pending.values())), "too many connections without a HELLO")
            self._pending[connected.fileno()] = connection
            self._selector.register(connected, selectors.EVENT_READ, connection)

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: accepting would fail again at once, so free some and pause."""
        self._log.warning("everybody", str(error))
        for connection in list(self._pending.values())[:_ACCEPTS_PER_ROUND]:
            self._turn_away(connection, "out of descriptors")
        self._rest_until = time.monotonic() + _REST_WITHOUT_DESCRIPTORS_S
        self._selector.unregister(self._listening)

    def _read_hello(self, connection: PendingConnection) -> None:
        if connection.socket.fileno() not in self._pending:
            return  # turned away earlier in this round
        try:
            data = connection.socket.recv(_HELLO_BYTES - len(connection.received))
        except BlockingIOError:
            return
        except OSError as error:
            self._turn_away(connection, str(error))
            return
        connection.received += data
        try:
            if not data:
                raise FrameError("closed before HELLO")
            hello = _parse_hello(connection.received)
        except OtherVersion as error:
            self._refuse_version(connection, error)
            return
        except FrameError as error:
            self._turn_away(connection, str(error))
            return
        if hello is not None:
            self._admit(self._forget(connection), hello)

    def _refuse_version(self, connection: PendingConnection, error: OtherVersion) -> None:
        """Tells the puller, in the only words we have; it looks no further than the version."""
        refusal = Refusal(TransferFailure.OTHER_VERSION, f"the puller has {error}")
        with contextlib.suppress(OSError):
            connection.socket.send(refusal.frame(FrameType.REFUSE).pack())
            connection.socket.shutdown(socket.SHUT_WR)
            connection.socket.recv(_MAX_UNREAD_BYTES)  # closing with unread input would take the answer back
        self._counters.add_refused()
        self._log.warning(connection.peer, str(error))
        self._forget(connection).close()

    def _turn_away(self, connection: PendingConnection, why: str) -> None:
        self._counters.add_garbage()
        self._log.warning(connection.peer, why)
        self._forget(connection).close()

    def _forget(self, connection: PendingConnection) -> socket.socket:
        del self._pending[connection.socket.fileno()]
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.socket)
        return connection.socket


def _parse_hello(received: bytearray) -> PullHello | None:
    """None while more bytes are to come. Raises FrameError as soon as it cannot become a HELLO."""
    if not MAGIC.startswith(received[: len(MAGIC)]):
        raise FrameError("not this protocol")
    if len(received) < HEADER_BYTES:
        return None
    header = Header.parse(received[:HEADER_BYTES])
    if header.type is not FrameType.HELLO or header.payload_bytes != HELLO_PAYLOAD_BYTES:
        raise FrameError(f"{header.type.name} of {header.payload_bytes} bytes instead of HELLO")
    if len(received) < _HELLO_BYTES:
        return None
    payload = bytes(received[HEADER_BYTES:])
    header.check(payload)
    return PullHello.parse(payload)
