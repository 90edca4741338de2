"""The listening side of the transfer port: everything about a connection until its claim is there.

One thread accepts and reads claims without blocking, so that a pending connection costs a descriptor for a short time
and never a thread. How many there can be is bounded; whatever goes wrong with one ends that one only.
"""

import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from kvcache.transfer.counters import ConnectionOutcome, CounterSet
from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.frames import FrameError, OtherVersion
from kvcache.transfer.payloads import Claim
from kvcache.transfer.pending_connection import PendingConnection
from kvcache.transfer.refusal import Refusal
from kvcache.transfer.refusal_log import RefusalLog
from kvcache.transfer.wakeup import Wakeup

_ACCEPTS_PER_ROUND = 64
_REST_S = 0.1


class Acceptor:
    """`run` is the thread. `admit` gets the socket of every claim, owns it from then on, and does not block."""

    def __init__(
        self,
        listening: socket.socket,
        counters: CounterSet,
        admit: Callable[[socket.socket, Claim], None],
        log: RefusalLog,
        *,
        handshake_timeout_s: float,
        max_pending: int,
    ) -> None:
        """Owns `listening`, unless this raises OSError."""
        listening.setblocking(False)
        self._listening = listening
        self._counters = counters
        self._admit = admit
        self._log = log
        self._handshake_timeout_s = handshake_timeout_s
        self._max_pending = max_pending
        self._wakeup = Wakeup()
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._pending: OrderedDict[int, PendingConnection] = OrderedDict()  # by descriptor; oldest first
        self._rest_until: float | None = None

    def stop(self) -> None:
        """Makes `run` return soon; from any thread, while `run` has not returned."""
        self._is_stopping = True
        self._wakeup.set()

    def run(self) -> None:
        try:
            self._selector.register(self._wakeup, selectors.EVENT_READ)
            self._selector.register(self._listening, selectors.EVENT_READ)
            while not self._is_stopping:
                self._round()
        finally:
            for connection in self._pending.values():
                connection.close()
            self._selector.close()
            self._listening.close()
            self._wakeup.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.data, PendingConnection) and key.data.fileno() in self._pending:
                self._read(key.data)
        now = time.monotonic()
        while self._pending and self._oldest.deadline <= now:
            self._turn_away(self._oldest, f"no claim within {self._handshake_timeout_s:g} s")
        if self._rest_until is not None and self._rest_until <= now:
            self._resume(now)

    @property
    def _oldest(self) -> PendingConnection:
        return next(iter(self._pending.values()))

    def _timeout_s(self) -> float | None:
        """How long until the next deadline; None without one."""
        deadlines = [self._oldest.deadline] if self._pending else []
        if self._rest_until is not None:
            deadlines.append(self._rest_until)
        return max(min(deadlines) - time.monotonic(), 0.0) if deadlines else None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                stream, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._rest(error)
                return
            connection = PendingConnection(stream, str(address[0]), time.monotonic() + self._handshake_timeout_s)
            try:
                stream.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, connection)
            except OSError as error:
                connection.close()
                self._rest(error)
                return
            self._pending[connection.fileno()] = connection
            if len(self._pending) > self._max_pending:
                # A puller makes its claim at once: who has been silent longest is the least likely to be one.
                self._turn_away(self._oldest, "too many connections without a claim")

    def _rest(self, error: OSError) -> None:
        """Out of descriptors, or of memory for sockets: accepting again would fail at once, so free some and pause."""
        self._log.note("everybody", str(error))
        for connection in list(self._pending.values())[:_ACCEPTS_PER_ROUND]:
            self._turn_away(connection, "out of descriptors")
        self._rest_until = time.monotonic() + _REST_S
        self._selector.unregister(self._listening)

    def _resume(self, now: float) -> None:
        try:
            self._selector.register(self._listening, selectors.EVENT_READ)
        except OSError as error:
            self._log.note("everybody", str(error))
            self._rest_until = now + _REST_S
        else:
            self._rest_until = None

    def _read(self, connection: PendingConnection) -> None:
        try:
            claim = connection.read_claim()
        except OtherVersion as error:
            self._forget(connection)
            self._counters.add_connection(ConnectionOutcome.REFUSED)
            self._log.note(connection.peer, str(error))
            connection.refuse(Refusal(TransferFailure.OTHER_VERSION, f"the puller has {error}"))
        except (FrameError, OSError) as error:
            self._turn_away(connection, str(error))
        else:
            if claim is not None:
                self._forget(connection)
                self._admit(connection.hand_over(), claim)

    def _turn_away(self, connection: PendingConnection, why: str) -> None:
        self._counters.add_connection(ConnectionOutcome.GARBAGE)
        self._log.note(connection.peer, why)
        self._forget(connection)
        connection.close()

    def _forget(self, connection: PendingConnection) -> None:
        del self._pending[connection.fileno()]
        self._selector.unregister(connection)
