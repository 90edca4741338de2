"""Which blocks a worker's prefix cache holds, as its numbered events tell."""

from collections.abc import Set as AbstractSet

from master.routing.prefix_index import HeldBlocks, PrefixIndex
from protos.session_messages import CacheEvents


class CacheIndex:
    """A snapshot begins anew; one in parts goes on in the events after it."""

    def __init__(self, prefixes: PrefixIndex, worker: str) -> None:
        self._held = HeldBlocks(prefixes, worker)
        self._number = 0  # of the last event
        self._is_behind = False  # until the next snapshot

    @property
    def blocks(self) -> AbstractSet[bytes]:
        """Some may be gone while it is behind; a prompt that is sent there for them is computed."""
        return self._held.blocks

    def add(self, events: CacheEvents) -> bool:
        """False when events before it were missed, so that a snapshot must be asked for."""
        has_gap = events.number != self._number + 1
        self._number = events.number
        if events.is_snapshot:
            self._is_behind = False
            self._held.clear()
            self._held.add(events.stored)
            return True
        self._is_behind |= has_gap
        if not self._is_behind:
            self._held.add(events.stored)
            self._held.remove(events.removed)
        return not has_gap

    def forget(self) -> None:
        """The session is over: the next one counts anew."""
        self._held.clear()
        self._number, self._is_behind = 0, False
