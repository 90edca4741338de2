"""What a master knows of a worker's cache, whatever is lost on the way."""

from master.routing.prefix_index import PrefixIndex
from master.workers.cache_index import CacheIndex
from protos.session_messages import CacheEvents


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


A, B, C, D = (key(number) for number in range(4))


def index(*events: CacheEvents) -> CacheIndex:
    made = CacheIndex(PrefixIndex(), "mix-0")
    assert all(made.add(event) for event in events)
    return made


def test_changes_follow_a_snapshot() -> None:
    known = index(CacheEvents(1, (A, B), is_snapshot=True), CacheEvents(2, (C,), (A,)))
    assert known.blocks == {B, C}


def test_a_snapshot_replaces_what_was_known_and_may_come_in_parts() -> None:
    known = index(CacheEvents(1, (A,), is_snapshot=True), CacheEvents(2, (B,), is_snapshot=True), CacheEvents(3, (C,)))
    assert known.blocks == {B, C}


def test_a_gap_shows_and_only_a_snapshot_closes_it() -> None:
    known = index(CacheEvents(1, (A,), is_snapshot=True))
    assert not known.add(CacheEvents(3, (B,)))
    assert known.add(CacheEvents(4, (C,), (A,))), "said once"
    assert known.blocks == {A}, "what comes after a gap may be of what was missed"
    assert known.add(CacheEvents(5, (D,), is_snapshot=True))
    assert known.add(CacheEvents(6, (C,)))
    assert known.blocks == {C, D}


def test_a_second_gap_is_another() -> None:
    known = index(CacheEvents(1, (A,), is_snapshot=True))
    assert not known.add(CacheEvents(3))
    assert not known.add(CacheEvents(9))


def test_a_snapshot_needs_nothing_before_it() -> None:
    assert index(CacheEvents(7, (A,), is_snapshot=True), CacheEvents(8, (B,))).blocks == {A, B}


def test_changes_without_a_snapshot_are_a_gap_unless_they_are_the_first() -> None:
    assert not CacheIndex(PrefixIndex(), "mix-0").add(CacheEvents(2, (A,)))
    assert index(CacheEvents(1, (A,))).blocks == {A}


def test_the_next_session_counts_anew() -> None:
    known = index(CacheEvents(1, (A, B), is_snapshot=True), CacheEvents(2, (C,)))
    known.forget()
    assert known.blocks == set()
    assert known.add(CacheEvents(1, (D,), is_snapshot=True))
    assert known.blocks == {D}
