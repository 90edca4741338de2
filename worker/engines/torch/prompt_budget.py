"""How the tokens of one step are shared among prompts."""

from worker.engines.torch.sequence import Sequence


class PromptBudget:
    """Prompts take from it in their order.

    One that ends in this step takes all it needs. A longer one leaves half of what is there to those behind it, so that
    a short prompt never waits for a long one to end; what they don't need goes back to the first that can use it.
    """

    def __init__(self, num_tokens: int, *, can_cut: bool) -> None:
        self._num_left = num_tokens
        self._can_cut = can_cut
        self._shares: dict[Sequence, int] = {}

    @property
    def is_spent(self) -> bool:
        return self._num_left <= 0

    def take(self, sequence: Sequence, has_followers: bool) -> None:
        wanted = sequence.num_uncomputed
        if not self._can_cut:
            # The first goes uncut whatever the budget, or it would never go.
            self._give(sequence, wanted if wanted <= self._num_left or not self._shares else 0)
        elif wanted <= self._num_left or not has_followers:
            self._give(sequence, min(wanted, self._num_left))
        else:
            self._give(sequence, -(-self._num_left // 2))

    def shares(self) -> dict[Sequence, int]:
        """Tokens to compute of each sequence that got any."""
        if self._can_cut:
            for sequence, share in self._shares.items():
                self._give(sequence, min(sequence.num_uncomputed - share, self._num_left))
        return self._shares

    def _give(self, sequence: Sequence, num_tokens: int) -> None:
        if num_tokens > 0:
            self._shares[sequence] = self._shares.get(sequence, 0) + num_tokens
            self._num_left -= num_tokens
