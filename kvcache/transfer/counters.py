"""What a transfer server did so far."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.transports.transport import TransportKind


@dataclass(frozen=True)
class ServerCounters:
    """Totals since the start, and two levels: `num_open_exports` and `num_connections` are of this moment.

    A block counts as sent when its batch was handed to the socket (TCP) or offered for reading (VM_READ), again
    after a resume. `num_lost` are connections of pullers that ended before the hand-off did.
    """

    num_bytes: Mapping[TransportKind, int]
    num_blocks: Mapping[TransportKind, int]
    released: Mapping[ReleaseReason, int]
    num_accepted: int
    num_refused: int
    num_garbage: int
    num_lost: int
    num_open_exports: int
    num_connections: int


class CounterSet:
    """Thread-safe; the only place where a server counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes = dict.fromkeys(TransportKind, 0)
        self._num_blocks = dict.fromkeys(TransportKind, 0)
        self._released = dict.fromkeys(ReleaseReason, 0)
        self._num_accepted = 0
        self._num_refused = 0
        self._num_garbage = 0
        self._num_lost = 0

    def add_sent(self, transport: TransportKind, num_blocks: int, num_bytes: int) -> None:
        with self._lock:
            self._num_blocks[transport] += num_blocks
            self._num_bytes[transport] += num_bytes

    def add_released(self, reason: ReleaseReason) -> None:
        with self._lock:
            self._released[reason] += 1

    def add_accepted(self) -> None:
        with self._lock:
            self._num_accepted += 1

    def add_refused(self) -> None:
        with self._lock:
            self._num_refused += 1

    def add_garbage(self) -> None:
        with self._lock:
            self._num_garbage += 1

    def add_lost(self) -> None:
        with self._lock:
            self._num_lost += 1

    def read(self, num_open_exports: int, num_connections: int) -> ServerCounters:
        with self._lock:
            return ServerCounters(
                num_bytes=dict(self._num_bytes),
                num_blocks=dict(self._num_blocks),
                released=dict(self._released),
                num_accepted=self._num_accepted,
                num_refused=self._num_refused,
                num_garbage=self._num_garbage,
                num_lost=self._num_lost,
                num_open_exports=num_open_exports,
                num_connections=num_connections,
            )
