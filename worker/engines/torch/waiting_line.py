"""The sequences that wait for blocks, and who may be let in before others that wait for more of them than there are.

A large one at the head would keep everybody waiting while most of the pool is free; were it passed by for ever, it
would never run. So the search goes a few places beyond it, and whoever was passed MAX_OVERTAKEN times is passed no
more: from then on what becomes free gathers for it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from worker.engines.torch.sequence import Phase, Sequence

LOOK_AHEAD = 16
MAX_OVERTAKEN = 32


class WaitingLine:
    """In the order of the sequences."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._num_tokens: dict[Sequence, int] = {}  # that each is to compute
        self.num_tokens = 0  # of all

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=lambda s: s.order)
        num_tokens = 0 if sequence.group.is_pull else sequence.num_uncomputed
        self._num_tokens[sequence] = num_tokens
        self.num_tokens += num_tokens

    def discard(self, sequence: Sequence) -> None:
        """Harmless for one that does not wait."""
        if sequence not in self._num_tokens:
            return
        del self._sequences[bisect_left(self._sequences, sequence.order, key=lambda s: s.order)]
        self.num_tokens -= self._num_tokens.pop(sequence)


class LookAhead:
    """One search of the line, from its head on."""

    def __init__(self) -> None:
        self._passed: list[Sequence] = []

    @property
    def is_over(self) -> bool:
        """Whether nobody further behind may be let in."""
        return len(self._passed) >= LOOK_AHEAD or any(not _can_be_overtaken(sequence) for sequence in self._passed)

    def pass_by(self, sequence: Sequence) -> None:
        """There are not enough blocks for it."""
        self._passed.append(sequence)

    def let_in(self) -> None:
        """Somebody behind those that were passed by got blocks."""
        for sequence in self._passed:
            sequence.num_overtaken += 1


def _can_be_overtaken(sequence: Sequence) -> bool:
    """Not so when its stream has begun: it was preempted, or shares a request with others that run."""
    return sequence.group.phase is Phase.QUEUED and sequence.num_overtaken < MAX_OVERTAKEN
