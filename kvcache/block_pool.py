"""Keeps the books on which block holds what: reference counts, the prefix cache and its eviction.

A block is in one of three states, and `free + cached + held == num_blocks` at all times:

    free   --allocate-->  held       --release, never committed-->  free
    cached --match----->  held       --release, committed-------->  cached
    cached --evicted by allocate-->  held under another owner
    cached --forgotten-->  free

Only the engine thread touches a pool. Every operation costs O(1) for each block it names.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

HASH_BYTES = 16
DEFAULT_MAX_EVENTS = 65536


class OutOfBlocks(Exception):
    """The pool cannot give the blocks asked for; nothing was taken."""

    def __init__(self, num_requested: int, num_available: int, num_blocks: int) -> None:
        super().__init__(f"{num_requested} blocks requested, {num_available} of {num_blocks} available")
        self.num_requested = num_requested
        self.num_available = num_available
        self.num_blocks = num_blocks


class CacheEventKind(Enum):
    STORED = "stored"
    REMOVED = "removed"
    RESET = "reset"


@dataclass(frozen=True)
class CacheEvent:
    """A change of the set of hashes that `match` can find.

    RESET carries no hash and stands for changes that were not kept: what is known of this pool must be
    replaced by `BlockPool.snapshot()`.
    """

    kind: CacheEventKind
    hash: bytes | None = None


class BlockPool:
    """Book-keeping of the block ids 0 … num_blocks - 1.

    With `enable_prefix_cache=False` nothing is ever cached: `match` finds nothing and `commit` names nothing.
    Misuse by the owner (releasing a block nobody holds, and the like) raises AssertionError.
    """

    def __init__(self, num_blocks: int, enable_prefix_cache: bool = True, max_events: int = DEFAULT_MAX_EVENTS) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self._num_blocks = num_blocks
        self._enable_prefix_cache = enable_prefix_cache
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        # Popped from the end: a fresh pool hands out ascending ids, so that a prompt's blocks are neighbours
        # and its transfer needs few memory ranges.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._num_held = 0
        self._events: list[CacheEvent] = []
        self._max_events = max_events

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks with content that nobody holds, kept until their space is needed."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with at least one reference."""
        return self._num_held

    @property
    def num_available(self) -> int:
        """How many blocks `allocate` can give now."""
        return len(self._free) + len(self._cached)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Returns the blocks of the longest leading run of known chain hashes, and takes a reference on each."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of_hash.get(block_hash)
            if block is None:
                break
            if self._references[block] == 0:
                del self._cached[block]
                self._num_held += 1
            self._references[block] += 1
            blocks.append(block)
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Returns `count` blocks with one reference each: free ones first, then the least recently used cached ones.

        Raises OutOfBlocks, having taken nothing, when fewer are available. The content is whatever was there.
        """
        assert count >= 0, count
        if count > self.num_available:
            raise OutOfBlocks(count, self.num_available, self._num_blocks)
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        self._num_held += count
        return blocks

    def retain(self, blocks: Sequence[int]) -> None:
        """Takes one more reference on each block, all of them held already."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is not held"
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drops one reference on each block; `blocks` in prompt order.

        Last block first, so that of one chain the tail is evicted before the head: a head without its tail is
        still a usable prefix, a tail without its head is not.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is not held"
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            self._num_held -= 1
            if self._hashes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def commit(self, block: int, block_hash: bytes) -> bool:
        """Names the final content of a full, held block, so that `match` finds it; True if the name is its own.

        When another block has that content already, this one stays private to its holders and False returns.
        """
        assert self._references[block] > 0, f"block {block} is not held"
        assert len(block_hash) == HASH_BYTES, f"a hash has {HASH_BYTES} bytes, got {len(block_hash)}"
        if not self._enable_prefix_cache:
            return False
        owner = self._block_of_hash.setdefault(block_hash, block)
        if owner != block:
            return False
        if self._hashes[block] is None:
            self._hashes[block] = block_hash
            self._record(CacheEventKind.STORED, block_hash)
        assert self._hashes[block] == block_hash, f"block {block} has other content already"
        return True

    def forget(self, hashes: Sequence[bytes]) -> None:
        """What these hashes name is not to be trusted: `match` finds it no more. Whoever holds it keeps it."""
        for block_hash in hashes:
            block = self._block_of_hash.pop(block_hash, None)
            if block is None:
                continue
            self._hashes[block] = None
            if self._references[block] == 0:
                del self._cached[block]
                self._free.append(block)
            self._record(CacheEventKind.REMOVED, block_hash)

    def drain_events(self) -> list[CacheEvent]:
        """Returns what changed since the last call, in order, or one RESET when that was more than is kept."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[bytes]:
        """Returns every hash that `match` can find, those of held blocks included."""
        return list(self._block_of_hash)

    def check(self) -> None:
        """Raises AssertionError unless every block is accounted for exactly once. Costs O(num_blocks)."""
        num_held = sum(count > 0 for count in self._references)
        assert min(self._references) >= 0, "negative reference count"
        assert num_held == self._num_held, f"{num_held} blocks have references, {self._num_held} are counted"
        total = self.num_free + self.num_cached + self.num_held
        assert total == self._num_blocks, (
            f"free {self.num_free} + cached {self.num_cached} + held {self.num_held} != {self._num_blocks}"
        )
        unheld = {*self._free, *self._cached}
        assert len(unheld) == self.num_available, "a block is free or cached twice"
        assert all(self._references[block] == 0 for block in unheld), "a free or cached block has references"
        assert all(self._hashes[block] is None for block in self._free), "a free block has a hash"
        assert all(self._hashes[block] is not None for block in self._cached), "a cached block has no hash"
        named = {block_hash: block for block, block_hash in enumerate(self._hashes) if block_hash is not None}
        assert named == self._block_of_hash, "blocks and hashes disagree"

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        block_hash = self._hashes[block]
        assert block_hash is not None, f"cached block {block} has no hash"
        del self._block_of_hash[block_hash]
        self._hashes[block] = None
        self._record(CacheEventKind.REMOVED, block_hash)
        return block

    def _record(self, kind: CacheEventKind, block_hash: bytes) -> None:
        if self._events and self._events[0].kind is CacheEventKind.RESET:
            return
        if len(self._events) >= self._max_events:
            self._events = [CacheEvent(CacheEventKind.RESET)]
            return
        self._events.append(CacheEvent(kind, block_hash))
