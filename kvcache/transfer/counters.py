"""What a transfer server did so far."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kvcache.transfer.export import ReleaseReason


class ConnectionOutcome(Enum):
    """What became of a connection to the transfer port; one that is accepted may be lost or turn out garbage later."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    GARBAGE = "garbage"  # it did not keep to the protocol
    LOST = "lost"  # it ended before the hand-off did


@dataclass(frozen=True)
class ServerCounters:
    """Totals since the start, and two levels: `num_open_exports` and `num_connections` are of this moment.

    `num_bytes` and `num_blocks` are by transport. A block counts as sent when its batch was handed to the socket or,
    where the puller reads by itself, offered for reading; again after a resume.
    """

    num_bytes: Mapping[str, int]
    num_blocks: Mapping[str, int]
    released: Mapping[ReleaseReason, int]
    connections: Mapping[ConnectionOutcome, int]
    num_open_exports: int
    num_connections: int


class CounterSet:
    """Thread-safe; the only place where a server counts."""

    def __init__(self, transports: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._num_bytes = dict.fromkeys(transports, 0)
        self._num_blocks = dict.fromkeys(self._num_bytes, 0)
        self._released = dict.fromkeys(ReleaseReason, 0)
        self._connections = dict.fromkeys(ConnectionOutcome, 0)

    def add_sent(self, transport: str, num_blocks: int, num_bytes: int) -> None:
        with self._lock:
            self._num_blocks[transport] += num_blocks
            self._num_bytes[transport] += num_bytes

    def add_released(self, reason: ReleaseReason) -> None:
        with self._lock:
            self._released[reason] += 1

    def add_connection(self, outcome: ConnectionOutcome) -> None:
        with self._lock:
            self._connections[outcome] += 1

    def read(self, num_open_exports: int, num_connections: int) -> ServerCounters:
        with self._lock:
            return ServerCounters(
                num_bytes=dict(self._num_bytes),
                num_blocks=dict(self._num_blocks),
                released=dict(self._released),
                connections=dict(self._connections),
                num_open_exports=num_open_exports,
                num_connections=num_connections,
            )
