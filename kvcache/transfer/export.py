"""One hand-off on the prefill side, from the first chunk to the release of its blocks.

    OPEN    publish() as chunks complete; no lease runs, the engine owns the request and will seal or abort it
    SEALED  all blocks and the record are there; the lease runs, and a puller's progress renews it
    ENDED   by acknowledgement, expiry, abort or the server's close, whichever is first

After the end `on_release` is called once: at once, or when the last pinned read is over. Until then the blocks
must keep their content. A pinned read lasts no longer than the server's time limit for sending one batch.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kvcache.transfer.frames import MAX_RECORD_BYTES
from kvcache.transfer.handle import KvHandle

logger = logging.getLogger(__name__)


class ReleaseReason(Enum):
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    ABORTED = "aborted"
    CLOSED = "closed"


@dataclass(frozen=True)
class ExportEnd:
    reason: ReleaseReason
    text: str


@dataclass(frozen=True)
class ExportState:
    """What a puller can be told now."""

    num_blocks: int
    record: bytes | None
    end: ExportEnd | None


class Puller(Protocol):
    """The connection that an export is being sent on. Both calls return at once."""

    def wake(self) -> None:
        """Is told that the export's state changed."""

    def cut(self) -> None:
        """Is told that a newer connection took its place."""


class Export:
    """Made by `TransferServer.open`. Every method may be called from any thread and none blocks."""

    def __init__(
        self,
        handle: KvHandle,
        lease_s: float,
        on_release: Callable[[ReleaseReason], None],
        on_end: Callable[["Export"], None],
    ) -> None:
        """`on_end` is told first, so that the token is unknown before the blocks are released."""
        self.handle = handle
        self._lease_s = lease_s
        self._on_release: Callable[[ReleaseReason], None] | None = on_release
        self._on_end = on_end
        self._lock = threading.Lock()
        self._blocks: list[int] = []
        self._record: bytes | None = None
        self._deadline: float | None = None
        self._end: ExportEnd | None = None
        self._num_pins = 0
        self._puller: Puller | None = None

    def publish(self, blocks: Sequence[int]) -> None:
        """Offers further blocks of the prompt, in order, whose content is final. Ignored after the end."""
        with self._lock:
            assert self._record is None, "published after the seal"
            if self._end is None:
                self._blocks.extend(blocks)
                self._wake()

    def seal(self, record: bytes) -> None:
        """All blocks are published; `record` is what the decode side gets last. Starts the lease.

        Raises ValueError for a record above MAX_RECORD_BYTES. Ignored after the end.
        """
        if len(record) > MAX_RECORD_BYTES:
            raise ValueError(f"hand-off record of {len(record)} bytes, at most {MAX_RECORD_BYTES}")
        with self._lock:
            assert self._record is None, "sealed twice"
            if self._end is None:
                self._record = record
                self._deadline = time.monotonic() + self._lease_s
                self._wake()

    def abort(self, text: str) -> None:
        """Ends the export: nobody can have, or wants, the KV. A puller is told `text`. Harmless after the end."""
        self.end(ReleaseReason.ABORTED, text)

    @property
    def deadline(self) -> float | None:
        """When the lease ends, on the monotonic clock; None while no lease runs."""
        with self._lock:
            return self._deadline if self._end is None else None

    def end(self, reason: ReleaseReason, text: str) -> bool:
        """Ends the export for `reason`; False, and no effect, when it has ended before."""
        return self._end_if(lambda: True, reason, text)

    def expire(self, now: float) -> bool:
        """Ends the export if its lease ended at `now` or before."""
        return self._end_if(
            lambda: self._deadline is not None and self._deadline <= now,
            ReleaseReason.EXPIRED,
            f"lease of {self._lease_s:g} s ended",
        )

    def acknowledge(self, num_blocks: int) -> bool:
        """Ends the export: it was read. False when the lease did not hold until now, or when this is not everything."""
        return self._end_if(
            lambda: (
                self._deadline is not None and time.monotonic() < self._deadline and num_blocks == len(self._blocks)
            ),
            ReleaseReason.ACKNOWLEDGED,
            "acknowledged",
        )

    def renew(self) -> None:
        """Begins the lease anew: the puller made progress."""
        with self._lock:
            if self._deadline is not None:
                self._deadline = max(self._deadline, time.monotonic() + self._lease_s)

    def state(self) -> ExportState:
        with self._lock:
            return ExportState(len(self._blocks), self._record, self._end)

    def attach(self, puller: Puller) -> ExportEnd | None:
        """Makes `puller` the only connection of this export, unless that has ended: then returns how."""
        with self._lock:
            if self._end is None:
                if self._puller is not None:
                    self._puller.cut()
                self._puller = puller
            return self._end

    def detach(self, puller: Puller) -> None:
        """`puller` will not be called any more."""
        with self._lock:
            if self._puller is puller:
                self._puller = None

    @contextmanager
    def pinned(self, first: int, limit: int) -> Iterator[Sequence[int]]:
        """Keeps up to `limit` published blocks from prompt index `first` on until the context is left.

        Empty when the export has ended.
        """
        with self._lock:
            blocks = self._blocks[first : first + limit] if self._end is None else []
            self._num_pins += 1
        try:
            yield blocks
        finally:
            with self._lock:
                self._num_pins -= 1
            self._release_if_unused()

    def _end_if(self, condition: Callable[[], bool], reason: ReleaseReason, text: str) -> bool:
        with self._lock:
            if self._end is not None or not condition():
                return False
            self._end = ExportEnd(reason, text)
            self._blocks, self._record = [], None
            self._wake()
        self._on_end(self)
        self._release_if_unused()
        return True

    def _release_if_unused(self) -> None:
        with self._lock:
            if self._end is None or self._num_pins > 0 or self._on_release is None:
                return
            on_release, self._on_release = self._on_release, None
            reason = self._end.reason
        try:
            on_release(reason)
        except Exception:
            logger.exception("release of leg %d failed (%s)", self.handle.leg, reason.value)

    def _wake(self) -> None:
        if self._puller is not None:
            self._puller.wake()
