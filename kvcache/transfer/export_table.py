"""The exports of one server, found by token; the ends of recent ones, so that a late puller learns the truth."""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict

from kvcache.transfer.export import Export
from kvcache.transfer.payloads import Claim

# Enough for every puller that lost its connection just before the end; each entry is a few hundred bytes.
MAX_REMEMBERED = 1024


class ExportTable:
    """Thread-safe. An export enters with `add` and leaves with `retire`, which its own end calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._live: dict[bytes, Export] = {}
        self._ended: OrderedDict[bytes, Export] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._live)

    def add(self, export: Export) -> None:
        with self._lock:
            self._live[self._digest(export.handle.token)] = export

    def retire(self, export: Export) -> None:
        """Remembers only how the export ended."""
        digest = self._digest(export.handle.token)
        with self._lock:
            self._live.pop(digest, None)
            self._ended[digest] = export
            while len(self._ended) > MAX_REMEMBERED:
                self._ended.popitem(last=False)

    def find(self, claim: Claim) -> Export | None:
        """Returns the export, live or recently ended, that has exactly this token, leg and epoch."""
        digest = self._digest(claim.token)
        with self._lock:
            export = self._live.get(digest) or self._ended.get(digest)
        # The digest is keyed, so the time of its look-up tells nothing about tokens; neither does this.
        if export is None or not hmac.compare_digest(export.handle.token, claim.token):
            return None
        if (export.handle.leg, export.handle.epoch) != (claim.leg, claim.epoch):
            return None
        return export

    def live(self) -> list[Export]:
        with self._lock:
            return list(self._live.values())

    def next_deadline(self) -> float | None:
        """Says when the first running lease ends, on the monotonic clock."""
        deadlines = [deadline for export in self.live() if (deadline := export.deadline) is not None]
        return min(deadlines, default=None)

    def expire(self, now: float) -> None:
        """Ends every export whose lease is over."""
        for export in self.live():
            export.expire(now)

    def _digest(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=16).digest()
