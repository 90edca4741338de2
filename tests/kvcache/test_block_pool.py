import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.block_pool import BlockPool, CacheEvent, CacheEventKind, OutOfBlocks


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{index}".encode().ljust(16, b".") for index in range(length)]


def cache(pool: BlockPool, hashes: list[bytes]) -> list[int]:
    """Leaves blocks of these hashes cached, as a finished request does."""
    blocks = pool.allocate(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        assert pool.commit(block, block_hash)
    pool.release(blocks)
    return blocks


def num_known(pool: BlockPool, hashes: list[bytes]) -> int:
    """How many blocks `match` would find; it takes none and leaves the order of eviction alone."""
    known = set(pool.snapshot())
    return sum(1 for _ in itertools.takewhile(known.__contains__, hashes))


def test_match_finds_the_longest_leading_run_and_holds_it() -> None:
    pool = BlockPool(8)
    hashes = chain("a", 4)
    blocks = cache(pool, hashes)
    assert pool.match([*hashes[:2], b"x" * 16, hashes[3]]) == blocks[:2]
    assert (pool.num_held, pool.num_cached, pool.num_free) == (2, 2, 4)
    assert pool.match([b"x" * 16, *hashes]) == []


def test_blocks_still_held_are_matched_and_shared() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.commit(block, chain("a", 1)[0])
    assert pool.match(chain("a", 1)) == [block]
    pool.release([block])
    assert pool.num_held == 1
    pool.release([block])
    assert (pool.num_held, pool.num_cached) == (0, 1)


def test_allocate_takes_nothing_when_it_cannot_take_all() -> None:
    pool = BlockPool(4)
    held = pool.allocate(2)
    with pytest.raises(OutOfBlocks) as refusal:
        pool.allocate(3)
    assert (refusal.value.num_requested, refusal.value.num_available, refusal.value.num_blocks) == (3, 2, 4)
    assert pool.num_free == 2
    pool.release(held)
    assert len(pool.allocate(4)) == 4


def test_free_blocks_are_used_before_anything_is_evicted() -> None:
    pool = BlockPool(6)
    hashes = chain("a", 3)
    cache(pool, hashes)
    pool.allocate(3)
    assert num_known(pool, hashes) == 3


def test_a_chain_loses_its_tail_first() -> None:
    pool = BlockPool(4)
    hashes = chain("a", 4)
    cache(pool, hashes)
    for num_left in (3, 2, 1, 0):
        pool.allocate(1)
        assert num_known(pool, hashes) == num_left
        assert len(pool.snapshot()) == num_left


def test_the_least_recently_used_chain_is_evicted_first() -> None:
    pool = BlockPool(6)
    old, new = chain("old", 3), chain("new", 3)
    cache(pool, old)
    cache(pool, new)
    pool.release(pool.match(old))
    pool.allocate(3)
    assert (num_known(pool, old), num_known(pool, new)) == (3, 0)


def test_a_shared_prefix_outlives_the_tails_that_were_built_on_it() -> None:
    pool = BlockPool(4)
    hashes = chain("a", 4)
    cache(pool, hashes)
    pool.release(pool.match(hashes[:2]))
    pool.allocate(2)
    assert num_known(pool, hashes) == 2


def test_held_blocks_are_never_evicted() -> None:
    pool = BlockPool(3)
    hashes = chain("a", 2)
    cache(pool, hashes)
    held = pool.match(hashes)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.match(hashes) == held


def test_equal_content_keeps_its_first_name_and_the_second_block_stays_private() -> None:
    pool = BlockPool(2)
    (block_hash,) = chain("a", 1)
    first, second = pool.allocate(2)
    assert pool.commit(first, block_hash)
    assert pool.commit(first, block_hash)
    assert not pool.commit(second, block_hash)
    pool.release([first, second])
    assert (pool.num_free, pool.num_cached) == (1, 1)
    assert pool.match([block_hash]) == [first]


def test_without_prefix_cache_nothing_is_ever_kept() -> None:
    pool = BlockPool(2, enable_prefix_cache=False)
    blocks = pool.allocate(2)
    assert not pool.commit(blocks[0], chain("a", 1)[0])
    assert pool.match(chain("a", 1)) == []
    pool.release(blocks)
    assert (pool.num_free, pool.drain_events()) == (2, [])


def test_events_tell_what_was_stored_and_removed_in_order() -> None:
    pool = BlockPool(2)
    first, second = chain("a", 2)
    cache(pool, [first, second])
    pool.allocate(1)
    assert pool.drain_events() == [
        CacheEvent(CacheEventKind.STORED, first),
        CacheEvent(CacheEventKind.STORED, second),
        CacheEvent(CacheEventKind.REMOVED, second),
    ]
    assert pool.drain_events() == []


def test_too_many_events_collapse_to_a_reset_and_the_snapshot_is_the_truth() -> None:
    pool = BlockPool(8, max_events=3)
    hashes = chain("a", 4)
    cache(pool, hashes)
    assert pool.drain_events() == [CacheEvent(CacheEventKind.RESET)]
    assert sorted(pool.snapshot()) == sorted(hashes)
    (later,) = chain("later", 1)
    cache(pool, [later])
    assert pool.drain_events() == [CacheEvent(CacheEventKind.STORED, later)]


def test_what_is_forgotten_is_found_no_more_and_stays_with_its_holders() -> None:
    """R10"""
    pool = BlockPool(6)
    hashes = chain("a", 4)
    cache(pool, hashes)
    held = pool.match(hashes[:2])
    pool.drain_events()
    pool.forget([*hashes[:3], b"x" * 16])
    pool.check()
    assert (pool.num_held, pool.num_cached, pool.match(hashes), pool.snapshot()) == (2, 1, [], hashes[3:])
    assert pool.drain_events() == [CacheEvent(CacheEventKind.REMOVED, key) for key in hashes[:3]]
    assert pool.commit(held[0], hashes[0])
    pool.release(held)
    pool.check()
    assert (pool.num_free, pool.num_cached) == (4, 2)


@pytest.mark.parametrize("misuse", ["release", "retain", "commit"])
def test_using_a_block_that_nobody_holds_is_a_bug(misuse: str) -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError):
        if misuse == "commit":
            pool.commit(blocks[0], b"h" * 16)
        else:
            getattr(pool, misuse)(blocks)
    pool.check()


def test_check_finds_a_block_that_is_lost() -> None:
    pool = BlockPool(3)
    pool._free.pop()
    with pytest.raises(AssertionError):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Requests of random prompts against a model: which hash is where, and who holds what.

    Prompts come from a small tree of chains, so that prefixes are shared. `held` are block tables in prompt order.
    """

    NUM_BLOCKS = 12

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS, max_events=40)
        self.held: list[list[int]] = []
        self.known: dict[bytes, int] = {}
        self.mirror: set[bytes] = set()

    def references(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for block in itertools.chain.from_iterable(self.held):
            counts[block] = counts.get(block, 0) + 1
        return counts

    @rule(tree=st.integers(0, 2), length=st.integers(0, 6), num_private=st.integers(0, 3))
    def admit(self, tree: int, length: int, num_private: int) -> None:
        prompt = [*chain("shared", length // 2), *chain(f"tree{tree}", length - length // 2)]
        expected = [self.known[h] for h in itertools.takewhile(self.known.__contains__, prompt)]
        matched = self.pool.match(prompt)
        assert matched == expected
        missing = prompt[len(matched) :]
        self.held.append(matched)
        num_wanted = len(missing) + num_private
        num_available = self.NUM_BLOCKS - len(self.references())
        assert self.pool.num_available == num_available
        if num_wanted > num_available:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(num_wanted)
            return
        fresh = self.pool.allocate(num_wanted)
        assert len(set(fresh)) == num_wanted and not set(fresh) & self.references().keys()
        self.known = {h: block for h, block in self.known.items() if block not in fresh}
        self.held[-1] = [*matched, *fresh]
        for block, block_hash in zip(fresh[: len(missing)], missing, strict=True):
            is_named = self.pool.commit(block, block_hash)
            assert is_named == (block_hash not in self.known)
            self.known.setdefault(block_hash, block)

    @precondition(lambda self: self.held)
    @rule(which=st.randoms(use_true_random=False))
    def finish(self, which: random.Random) -> None:
        self.pool.release(self.held.pop(which.randrange(len(self.held))))

    @precondition(lambda self: self.held)
    @rule(which=st.randoms(use_true_random=False))
    def fork(self, which: random.Random) -> None:
        table = list(which.choice(self.held))
        self.pool.retain(table)
        self.held.append(table)

    @rule(tree=st.integers(0, 2), length=st.integers(0, 6))
    def forget(self, tree: int, length: int) -> None:
        hashes = [*chain("shared", length // 2), *chain(f"tree{tree}", length - length // 2)]
        self.pool.forget(hashes)
        self.known = {key: block for key, block in self.known.items() if key not in hashes}

    @rule()
    def tell_master(self) -> None:
        for event in self.pool.drain_events():
            if event.kind is CacheEventKind.RESET:
                self.mirror = set(self.pool.snapshot())
            elif event.hash is not None and event.kind is CacheEventKind.STORED:
                assert event.hash not in self.mirror
                self.mirror.add(event.hash)
            elif event.hash is not None:
                self.mirror.remove(event.hash)
        assert self.mirror == set(self.pool.snapshot())

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check()
        assert self.pool.num_held == len(self.references())
        assert set(self.pool.snapshot()) == self.known.keys()
        assert self.pool.num_cached == len(set(self.known.values()) - self.references().keys())

    def teardown(self) -> None:
        for table in self.held:
            self.pool.release(table)
        self.pool.check()
        assert self.pool.num_held == 0


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_random_operations_agree_with_the_model = PoolMachine.TestCase
