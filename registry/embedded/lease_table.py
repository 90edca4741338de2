"""Leases of the built-in etcd: how long each lives and which keys hang on it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from registry.embedded.store_errors import LeaseExists, LeaseNotFound

MIN_TTL_S = 1


@dataclass
class LeaseEntry:
    """`expires_at_s` is on the table's clock."""

    id: int
    ttl_s: int
    expires_at_s: float
    keys: set[bytes] = field(default_factory=set)


class LeaseTable:
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leases: dict[int, LeaseEntry] = {}

    def grant(self, lease_id: int | None, ttl_s: int) -> LeaseEntry:
        """Gives a new lease of at least MIN_TTL_S, with a random id for None. Raises LeaseExists."""
        if lease_id is None:
            lease_id = random.randrange(1, 1 << 62)
        if lease_id in self._leases:
            raise LeaseExists
        ttl_s = max(MIN_TTL_S, ttl_s)
        entry = LeaseEntry(lease_id, ttl_s, self._clock() + ttl_s)
        self._leases[lease_id] = entry
        return entry

    def get(self, lease_id: int) -> LeaseEntry:
        """Raises LeaseNotFound, also when its time is over and nobody has swept it yet."""
        entry = self._leases.get(lease_id)
        if entry is None or entry.expires_at_s <= self._clock():
            raise LeaseNotFound
        return entry

    def renew(self, lease_id: int) -> LeaseEntry:
        """Raises LeaseNotFound."""
        entry = self.get(lease_id)
        entry.expires_at_s = self._clock() + entry.ttl_s
        return entry

    def remaining_s(self, entry: LeaseEntry) -> float:
        return entry.expires_at_s - self._clock()

    def remove(self, lease_id: int) -> LeaseEntry:
        """Raises LeaseNotFound."""
        entry = self._leases.pop(lease_id, None)
        if entry is None:
            raise LeaseNotFound
        return entry

    def move_key(self, key: bytes, old: int | None, new: int | None) -> None:
        """A key hangs on at most one lease; both are None or ids, of which the new one exists."""
        if old is not None and old in self._leases:
            self._leases[old].keys.discard(key)
        if new is not None:
            self._leases[new].keys.add(key)

    def ids(self) -> list[int]:
        return list(self._leases)

    def expired(self) -> list[int]:
        now_s = self._clock()
        return [entry.id for entry in self._leases.values() if entry.expires_at_s <= now_s]

    def next_expiry_s(self) -> float | None:
        """Seconds until a lease may end; None without leases."""
        if not self._leases:
            return None
        return max(0.0, min(entry.expires_at_s for entry in self._leases.values()) - self._clock())
