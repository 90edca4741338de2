"""The data of the built-in etcd: keys with versions, their bounded history, and leases. One event loop owns it."""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from registry.embedded.lease_table import LeaseTable
from registry.embedded.store_errors import (
    DuplicateKey,
    EmptyKey,
    KeyNotFound,
    RevisionCompacted,
    RevisionInFuture,
)

FIRST_REVISION = 1


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key at one moment; `version` counts its writes since it was created."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int | None


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """What one revision did to one key; `now` is None for a deletion, `before` for a creation."""

    revision: int
    key: bytes
    now: StoredKey | None
    before: StoredKey | None

    @property
    def num_bytes(self) -> int:
        return len(self.key) + sum(len(kv.value) for kv in (self.now, self.before) if kv is not None)


class EtcdStore:
    """Writes happen in a `transaction`, which is one revision or, if it fails, nothing.

    History is bounded by `max_events` and `max_event_bytes`; what is older is compacted by itself.
    """

    def __init__(
        self,
        *,
        max_events: int = 10_000,
        max_event_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.revision = FIRST_REVISION
        self.compacted_revision = 0  # the oldest revision that can be read is this one
        self.leases = LeaseTable(clock)
        self._max_events = max_events
        self._max_event_bytes = max_event_bytes
        self._keys: list[bytes] = []  # sorted
        self._stored: dict[bytes, StoredKey] = {}
        self._events: list[StoreEvent] = []  # by revision
        self._event_bytes = 0
        self._listeners: set[Callable[[], None]] = set()

    def range(self, key: bytes, range_end: bytes, revision: int | None = None) -> list[StoredKey]:
        """Keys from `key` to before `range_end` (empty: only `key`; one zero byte: no end), in order of key.

        `revision` reads the past. Raises EmptyKey, RevisionCompacted, RevisionInFuture.
        """
        if not key:
            raise EmptyKey
        if revision is None or revision == self.revision:
            found = (self._stored.get(name) for name in self._names(key, range_end))
            return [kv for kv in found if kv is not None]
        past = self._at(revision)
        return [past[name] for name in sorted(past) if in_range(name, key, range_end)]

    def get(self, key: bytes) -> StoredKey | None:
        return self._stored.get(key)

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """All writes inside become the next revision, unless the block raises, which undoes them."""
        transaction = Transaction(self, self.revision + 1)
        try:
            yield transaction
        except BaseException:
            for event in reversed(transaction.events):
                self._restore(event.key, event.before)
            raise
        if transaction.events:
            self._commit(transaction)

    def events_from(self, revision: int, limit: int) -> Sequence[StoreEvent]:
        """At least `limit` events from `revision` on if there are as many; never a part of a revision.

        Raises RevisionCompacted.
        """
        if revision < self.compacted_revision:
            raise RevisionCompacted
        first = self._first_event(revision)
        last = first + limit
        if last < len(self._events):
            last = self._first_event(self._events[last - 1].revision + 1)
        return self._events[first:last]

    def compact(self, revision: int) -> None:
        """Forgets what was before `revision`. Raises RevisionCompacted, RevisionInFuture."""
        if revision <= self.compacted_revision:
            raise RevisionCompacted
        if revision > self.revision:
            raise RevisionInFuture
        self._forget(self._first_event(revision))
        self.compacted_revision = revision

    def revoke(self, lease_id: int) -> None:
        """Ends a lease and deletes its keys as one revision. Raises LeaseNotFound."""
        entry = self.leases.remove(lease_id)
        with self.transaction() as transaction:
            for key in sorted(entry.keys):
                transaction.delete(key)

    def expire_leases(self) -> None:
        for lease_id in self.leases.expired():
            self.revoke(lease_id)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each new revision."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def num_bytes(self) -> int:
        return self._event_bytes + sum(len(kv.key) + len(kv.value) for kv in self._stored.values())

    def _names(self, key: bytes, range_end: bytes) -> list[bytes]:
        if not range_end:
            return [key]
        first = bisect_left(self._keys, key)
        last = len(self._keys) if range_end == b"\0" else bisect_left(self._keys, range_end)
        return self._keys[first:last]

    def _at(self, revision: int) -> dict[bytes, StoredKey]:
        if revision > self.revision:
            raise RevisionInFuture
        if revision < self.compacted_revision:
            raise RevisionCompacted
        past = dict(self._stored)
        for event in reversed(self._events[self._first_event(revision + 1) :]):
            if event.before is None:
                past.pop(event.key, None)
            else:
                past[event.key] = event.before
        return past

    def _first_event(self, revision: int) -> int:
        return bisect_left(self._events, revision, key=lambda event: event.revision)

    def _commit(self, transaction: "Transaction") -> None:
        self.revision = transaction.revision
        self._events.extend(transaction.events)
        self._event_bytes += sum(event.num_bytes for event in transaction.events)
        if len(self._events) > self._max_events or self._event_bytes > self._max_event_bytes:
            self._compact_to_half()
        for listener in tuple(self._listeners):
            listener()

    def _compact_to_half(self) -> None:
        """Halving makes the cost per event constant; the newest revision always stays."""
        dropped, kept_bytes = 0, self._event_bytes
        while len(self._events) - dropped > self._max_events // 2 or kept_bytes > self._max_event_bytes // 2:
            if self._events[dropped].revision == self.revision:
                break
            kept_bytes -= self._events[dropped].num_bytes
            dropped += 1
        if dropped:
            self.compact(self._events[dropped - 1].revision + 1)

    def _forget(self, num_events: int) -> None:
        self._event_bytes -= sum(event.num_bytes for event in self._events[:num_events])
        del self._events[:num_events]

    def _restore(self, key: bytes, kv: StoredKey | None) -> None:
        """Makes `kv` the present of `key`, in the map, the order and the leases."""
        before = self._stored.get(key)
        if kv is None:
            if self._stored.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        else:
            if before is None:
                insort(self._keys, key)
            self._stored[key] = kv
        self.leases.move_key(key, before.lease_id if before else None, kv.lease_id if kv else None)


class Transaction:
    """The writes of one revision."""

    def __init__(self, store: EtcdStore, revision: int) -> None:
        self.revision = revision
        self.events: list[StoreEvent] = []
        self._store = store
        self._put_keys: set[bytes] = set()

    def put(
        self,
        key: bytes,
        value: bytes | None,
        lease_id: int | None,
        *,
        keep_lease: bool = False,
    ) -> StoredKey | None:
        """Gives what was there before. `value` None keeps the value, `keep_lease` the lease.

        Raises EmptyKey, KeyNotFound (nothing to keep), LeaseNotFound, DuplicateKey.
        """
        if not key:
            raise EmptyKey
        if key in self._put_keys:
            raise DuplicateKey
        before = self._store.get(key)
        if before is None and (value is None or keep_lease):
            raise KeyNotFound
        if keep_lease and before is not None:
            lease_id = before.lease_id
        if lease_id is not None:
            self._store.leases.get(lease_id)
        now = StoredKey(key, value or b"", self.revision, self.revision, 1, lease_id)
        if before is not None:
            kept = before.value if value is None else value
            now = replace(now, value=kept, create_revision=before.create_revision, version=before.version + 1)
        self._put_keys.add(key)
        self._write(key, now, before)
        return before

    def delete(self, key: bytes) -> StoredKey | None:
        """Gives what was deleted, None if there was nothing."""
        before = self._store.get(key)
        if before is not None:
            self._write(key, None, before)
        return before

    def _write(self, key: bytes, now: StoredKey | None, before: StoredKey | None) -> None:
        self._store._restore(key, now)
        self.events.append(StoreEvent(self.revision, key, now, before))


def in_range(name: bytes, key: bytes, range_end: bytes) -> bool:
    """Whether etcd counts `name` as within `key` and `range_end`."""
    if not range_end:
        return name == key
    return key <= name and (range_end == b"\0" or name < range_end)
