"""Which blocks each worker's prefix cache holds, for all workers in one index.

A prompt's blocks are named by a chain of hashes. Workers evict a chain from its tail, so who holds a block holds
those before it, and where each worker's part of a chain ends is found by halving it, not by walking it.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

logger = logging.getLogger(__name__)

DEFAULT_MAX_BLOCKS = 2_000_000
CLEARED_AT_ONCE = 1024  # blocks of workers that left, with each news of another one


class PrefixIndex:
    """Bounded: while it is full, blocks that nobody else is known to hold are not taken in."""

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self.num_left_out = 0  # blocks, since the master began
        self._max_blocks = max_blocks
        self._holders: dict[bytes, int] = {}  # each worker is one bit
        self._names: list[str | None] = []  # by bit; None: free, or to be cleared first
        self._free: list[int] = []
        self._present = 0  # bits of the workers that are there
        self._leaving: deque[tuple[int, set[bytes]]] = deque()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, key: bytes) -> bool:
        return key in self._holders

    def join(self, worker: str) -> int:
        """A worker that holds nothing yet gets a bit."""
        self.clear_some()
        if not self._free:
            self._free.append(len(self._names))
            self._names.append(None)
        number = self._free.pop()
        self._names[number] = worker
        self._present |= 1 << number
        return 1 << number

    def leave(self, bit: int, blocks: set[bytes]) -> None:
        """The worker is not found any more; what it held, all of `blocks`, is cleared little by little."""
        self._present &= ~bit
        self._names[bit.bit_length() - 1] = None
        self._leaving.append((bit, blocks))

    def add(self, bit: int, key: bytes) -> bool:
        """False when there is no room for it."""
        holders = self._holders.get(key)
        if holders is None:
            if len(self._holders) >= self._max_blocks:
                self._leave_out()
                return False
            self._holders[key] = bit
        else:
            self._holders[key] = holders | bit
        return True

    def remove(self, bit: int, key: bytes) -> None:
        holders = self._holders[key] & ~bit
        if holders:
            self._holders[key] = holders
        else:
            del self._holders[key]

    def clear_some(self) -> None:
        for _ in range(CLEARED_AT_ONCE):
            if not self._leaving:
                return
            bit, blocks = self._leaving[0]
            if blocks:
                self.remove(bit, blocks.pop())
            else:
                self._leaving.popleft()
                self._free.append(bit.bit_length() - 1)

    def deepest(self, chain: Sequence[bytes], limit: int) -> list[str]:
        """The workers that hold most of the chain, at most so many; of those that hold the same, each in turn."""
        if not chain:
            return []
        found: list[str] = []
        parts = [(1, len(chain), self._holders.get(chain[0], 0) & self._present)]
        while parts and len(found) < limit:
            first, end, holders = parts.pop()  # they hold the block before `first`, and none from `end` on
            if first == end or not holders:
                found += self._in_turn(holders, limit - len(found))
                continue
            middle = (first + end) // 2
            deep = self._holders.get(chain[middle], 0) & holders
            parts.append((first, middle, holders & ~deep))
            parts.append((middle + 1, end, deep))
        return found

    def _in_turn(self, holders: int, limit: int) -> list[str]:
        later = holders >> self._turn << self._turn
        names: list[str] = []
        for bits in (later, holders ^ later):
            while bits and len(names) < limit:
                number = (bits & -bits).bit_length() - 1
                bits &= bits - 1
                name = self._names[number]
                assert name is not None, number
                names.append(name)
                self._turn = (number + 1) % len(self._names)
        return names

    def _leave_out(self) -> None:
        if self.num_left_out == 0:
            logger.warning("the prefix index is full with %d blocks: new ones are not known", self._max_blocks)
        self.num_left_out += 1


class HeldBlocks:
    """What one worker holds, as far as the index took it."""

    def __init__(self, index: PrefixIndex, worker: str) -> None:
        self._index = index
        self._worker = worker
        self._bit: int | None = None  # before it holds anything
        self._blocks: set[bytes] = set()

    @property
    def blocks(self) -> AbstractSet[bytes]:
        return self._blocks

    def add(self, keys: Iterable[bytes]) -> None:
        self._index.clear_some()
        if self._bit is None:
            self._bit = self._index.join(self._worker)
        for key in keys:
            if self._index.add(self._bit, key):
                self._blocks.add(key)

    def remove(self, keys: Collection[bytes]) -> None:
        for key in keys:
            if key in self._blocks and self._bit is not None:
                self._blocks.remove(key)
                self._index.remove(self._bit, key)

    def clear(self) -> None:
        """It holds nothing, or is gone."""
        if self._bit is not None:
            self._index.leave(self._bit, self._blocks)
            self._bit, self._blocks = None, set()
