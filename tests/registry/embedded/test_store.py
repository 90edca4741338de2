"""The data of the built-in etcd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.embedded.store import EtcdStore, StoredKey
from registry.embedded.store_errors import (
    DuplicateKey,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
    RevisionCompacted,
    RevisionInFuture,
)

KEYS = [b"a", b"ab", b"b", b"c\xff", b"d"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def put(store: EtcdStore, key: bytes, value: bytes = b"v", lease_id: int | None = None) -> None:
    with store.transaction() as transaction:
        transaction.put(key, value, lease_id)


def everything(store: EtcdStore, revision: int | None = None) -> list[StoredKey]:
    return store.range(b"\0", b"\0", revision)


operations = st.lists(st.tuples(st.sampled_from(["put", "delete", "fail"]), st.sampled_from(KEYS), st.binary()))


@given(operations)
def test_the_past_reads_as_it_was(steps: list[tuple[str, bytes, bytes]]) -> None:
    store = EtcdStore()
    expected: dict[bytes, bytes] = {}
    past = {store.revision: dict(expected)}
    for kind, key, value in steps:
        if kind == "put":
            put(store, key, value)
            expected[key] = value
        elif kind == "delete":
            with store.transaction() as transaction:
                transaction.delete(key)
            expected.pop(key, None)
        else:
            before = everything(store)
            with pytest.raises(LeaseNotFound), store.transaction() as transaction:
                transaction.put(key, value, None)
                transaction.delete(b"b")
                transaction.put(b"d" + key, value, lease_id=99)
            assert everything(store) == before
        past[store.revision] = dict(expected)
    for revision, contents in past.items():
        assert {kv.key: kv.value for kv in everything(store, revision)} == contents
        assert [kv.key for kv in everything(store, revision)] == sorted(contents)


@given(operations, st.integers(min_value=2, max_value=6))
def test_history_is_bounded_and_whole(steps: list[tuple[str, bytes, bytes]], max_events: int) -> None:
    store = EtcdStore(max_events=max_events)
    for _, key, value in steps:
        put(store, key, value)
        kept = store.events_from(store.compacted_revision, limit=100)
        assert len(kept) <= max_events
        assert [event.revision for event in kept] == list(range(kept[0].revision, store.revision + 1))
    with pytest.raises(RevisionCompacted):
        store.events_from(store.compacted_revision - 1, limit=1)


def test_history_is_bounded_in_bytes() -> None:
    store = EtcdStore(max_event_bytes=1000)
    for _ in range(100):
        put(store, b"k", b"x" * 100)
    assert store.compacted_revision > 90
    assert len(everything(store)) == 1


def test_events_never_split_a_revision() -> None:
    store = EtcdStore()
    with store.transaction() as transaction:
        for key in KEYS:
            transaction.put(key, b"", None)
    put(store, b"z")
    assert [event.key for event in store.events_from(2, limit=2)] == KEYS


def test_versions_and_revisions_count_as_in_etcd() -> None:
    store = EtcdStore()
    put(store, b"k", b"1")
    put(store, b"k", b"2")
    assert store.get(b"k") == StoredKey(b"k", b"2", create_revision=2, mod_revision=3, version=2, lease_id=None)
    with store.transaction() as transaction:
        transaction.delete(b"absent")
    assert store.revision == 3


def test_compaction_keeps_its_own_revision() -> None:
    store = EtcdStore()
    for key in KEYS:
        put(store, key)
    store.compact(4)
    assert [kv.key for kv in everything(store, 4)] == KEYS[:3]
    assert store.events_from(4, limit=1)[0].revision == 4
    with pytest.raises(RevisionCompacted):
        everything(store, 3)
    with pytest.raises(RevisionCompacted):
        store.compact(4)
    with pytest.raises(RevisionInFuture):
        store.compact(99)


def test_keeping_what_is_not_there_is_refused() -> None:
    store = EtcdStore()
    with pytest.raises(KeyNotFound), store.transaction() as transaction:
        transaction.put(b"k", None, None)
    with pytest.raises(KeyNotFound), store.transaction() as transaction:
        transaction.put(b"k", b"v", None, keep_lease=True)


def test_one_transaction_puts_a_key_once() -> None:
    store = EtcdStore()
    with pytest.raises(DuplicateKey), store.transaction() as transaction:
        transaction.put(b"k", b"1", None)
        transaction.put(b"k", b"2", None)
    assert store.get(b"k") is None


def test_a_lease_that_ends_takes_its_keys_along() -> None:
    clock = Clock()
    store = EtcdStore(clock=clock)
    store.leases.grant(7, 10)
    put(store, b"a", lease_id=7)
    put(store, b"b", lease_id=7)
    put(store, b"b")  # off the lease again
    clock.now_s = 9.0
    store.leases.renew(7)
    clock.now_s = 18.0
    store.expire_leases()
    assert [kv.key for kv in everything(store)] == [b"a", b"b"]
    clock.now_s = 19.0
    assert store.leases.next_expiry_s() == 0.0
    store.expire_leases()
    assert [kv.key for kv in everything(store)] == [b"b"]
    assert store.leases.ids() == []


def test_a_lease_past_its_time_is_gone_before_it_is_swept() -> None:
    clock = Clock()
    store = EtcdStore(clock=clock)
    store.leases.grant(7, 2)
    with pytest.raises(LeaseExists):
        store.leases.grant(7, 2)
    clock.now_s = 2.0
    with pytest.raises(LeaseNotFound):
        store.leases.renew(7)
    with pytest.raises(LeaseNotFound):
        put(store, b"k", lease_id=7)
