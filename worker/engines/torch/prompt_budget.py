"""How the tokens of one step are shared among prompts."""

from worker.engines.torch.sequence import Sequence
from worker.engines.torch.step_ceiling import TimeBudget


class PromptBudget:
    """Prompts take from it in their order.

    One that ends in this step takes all it needs. A longer one leaves half of what is there to those behind it, so that
    a short prompt never waits for a long one to end; what they don't need goes back to the first that can use it.
    """

    def __init__(self, num_tokens: int, time: TimeBudget | None = None, *, can_cut: bool) -> None:
        """`time`: where there is a ceiling; a prompt that can't be cut takes what it takes."""
        self._num_left = num_tokens
        self._time = time if can_cut else None
        self._can_cut = can_cut
        self._shares: dict[Sequence, int] = {}

    @property
    def is_spent(self) -> bool:
        return self._num_left <= 0 or (self._time is not None and self._time.is_spent)

    def take(self, sequence: Sequence, has_followers: bool) -> None:
        wanted, room = sequence.num_uncomputed, self._room(sequence)
        if not self._can_cut:
            # The first goes uncut whatever the budget, or it would never go.
            self._give(sequence, wanted if wanted <= room or not self._shares else 0)
        elif wanted <= room or not has_followers:
            self._give(sequence, min(wanted, room))
        else:
            self._give(sequence, -(-room // 2))

    def shares(self) -> dict[Sequence, int]:
        """Tokens to compute of each sequence that got any."""
        if self._can_cut:
            for sequence, share in self._shares.items():
                self._give(sequence, min(sequence.num_uncomputed - share, self._room(sequence)))
        return self._shares

    def _room(self, sequence: Sequence) -> int:
        if self._time is None:
            return self._num_left
        return min(self._num_left, self._time.room(self._num_before(sequence)))

    def _num_before(self, sequence: Sequence) -> int:
        return sequence.num_computed + self._shares.get(sequence, 0)

    def _give(self, sequence: Sequence, num_tokens: int) -> None:
        if num_tokens > 0:
            if self._time is not None:
                self._time.spend(self._num_before(sequence), num_tokens)
            self._shares[sequence] = self._shares.get(sequence, 0) + num_tokens
            self._num_left -= num_tokens
