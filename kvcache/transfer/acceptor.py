"""Everything about a connection before it has proven to be a puller.

One thread accepts and reads HELLOs without blocking, so that strangers cost a descriptor for a short time and never
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
from kvcache.transfer.export_table import ExportTable
from kvcache.transfer.frames import HEADER_BYTES, MAGIC, FrameError, FrameType, Header
from kvcache.transfer.payloads import HELLO_PAYLOAD_BYTES, Hello
from kvcache.transfer.wakeup import Wakeup

_HELLO_BYTES = HEADER_BYTES + HELLO_PAYLOAD_BYTES
_ACCEPTS_PER_ROUND = 64
_REST_WITHOUT_DESCRIPTORS_S = 0.1


@dataclass
class Stranger:
    """A connection that has not said HELLO yet. `deadline` on the monotonic clock."""

    socket: socket.socket
    peer: str
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Door:
    """`run` is the thread. `admit` gets the socket of every HELLO, owns it from then on, and does not block."""

    def __init__(
        self,
        listening: socket.socket,
        table: ExportTable,
        counters: CounterSet,
        admit: Callable[[socket.socket, Hello], None],
        log: BoundedLog,
        *,
        lease_s: float,
        handshake_timeout_s: float,
        max_strangers: int,
    ) -> None:
        self._listening = listening
        self._table = table
        self._counters = counters
        self._admit = admit
        self._log = log
        self._lease_s = lease_s
        self._handshake_timeout_s = handshake_timeout_s
        self._max_strangers = max_strangers
        self._wakeup = Wakeup()
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._strangers: OrderedDict[int, Stranger] = OrderedDict()  # by descriptor; oldest first
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
            for stranger in list(self._strangers.values()):
                self._forget(stranger).close()
            self._selector.close()
            self._listening.close()
            self._wakeup.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.data, Stranger):
                self._read_hello(key.data)
        now = time.monotonic()
        self._table.expire(now)
        while self._strangers and (oldest := next(iter(self._strangers.values()))).deadline <= now:
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
        if self._strangers:
            deadlines.append(next(iter(self._strangers.values())).deadline)
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
            stranger = Stranger(connected, str(address[0]), time.monotonic() + self._handshake_timeout_s)
            if len(self._strangers) >= self._max_strangers:
                # A puller says HELLO at once: the one that has been silent longest is the least likely to be one.
                self._turn_away(next(iter(self._strangers.values())), "too many connections without a HELLO")
            self._strangers[connected.fileno()] = stranger
            self._selector.register(connected, selectors.EVENT_READ, stranger)

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: accepting would fail again at once, so free some and pause."""
        self._log.warning("everybody", str(error))
        for stranger in list(self._strangers.values())[:_ACCEPTS_PER_ROUND]:
            self._turn_away(stranger, "out of descriptors")
        self._rest_until = time.monotonic() + _REST_WITHOUT_DESCRIPTORS_S
        self._selector.unregister(self._listening)

    def _read_hello(self, stranger: Stranger) -> None:
        if stranger.socket.fileno() not in self._strangers:
            return  # turned away earlier in this round
        try:
            data = stranger.socket.recv(_HELLO_BYTES - len(stranger.received))
        except BlockingIOError:
            return
        except OSError as error:
            self._turn_away(stranger, str(error))
            return
        stranger.received += data
        try:
            if not data:
                raise FrameError("closed before HELLO")
            hello = _parse_hello(stranger.received)
        except FrameError as error:
            self._turn_away(stranger, str(error))
            return
        if hello is not None:
            self._admit(self._forget(stranger), hello)

    def _turn_away(self, stranger: Stranger, why: str) -> None:
        self._counters.add_garbage()
        self._log.warning(stranger.peer, why)
        self._forget(stranger).close()

    def _forget(self, stranger: Stranger) -> socket.socket:
        del self._strangers[stranger.socket.fileno()]
        with contextlib.suppress(KeyError):
            self._selector.unregister(stranger.socket)
        return stranger.socket


def _parse_hello(received: bytearray) -> Hello | None:
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
    return Hello.parse(payload)
