"""How many of a prompt's tokens may be computed beside decodes, so that streams don't wait for longer than they may.

A token costs its share of the matrix products, and the more the more tokens stand before it; both are learnt from the
steps that had prompts. What decodes cost is that of the latest step which had nothing else, but never more than half of
one that had prompts as well: such a step that was slow by chance would else count until the last prompt is done.
"""

import math

from worker.engines.torch.weighted_line import WeightedLine

LEAST_TOKENS = 16  # of prompts in a step that has any, or they would wait for ever where decodes alone take too long
MEMORY_TOKENS = 4_000.0  # what is older than so many tokens counts for less than a third
MOST_OF_DECODES = 0.5  # of the time of a step with prompts


class TimeBudget:
    """What one step's prompts may take together."""

    def __init__(self, left_s: float, token_s: float, context_s: float) -> None:
        """A token with n before it takes `token_s + n * context_s`."""
        self._left_s = left_s
        self._token_s = token_s
        self._context_s = context_s
        self._num_least = LEAST_TOKENS

    @property
    def is_spent(self) -> bool:
        return self._left_s <= 0.0 and self._num_least <= 0

    def room(self, num_before: int) -> int:
        """Further tokens that a sequence with `num_before` may get."""
        return max(self._fitting(num_before), self._num_least, 0)

    def spend(self, num_before: int, num_tokens: int) -> None:
        mean_before = num_before + num_tokens / 2
        self._left_s -= num_tokens * (self._token_s + mean_before * self._context_s)
        self._num_least -= num_tokens

    def _fitting(self, num_before: int) -> int:
        """The root of n * (token_s + (num_before + n / 2) * context_s) = left_s."""
        if self._left_s <= 0.0:
            return 0
        first_s = self._token_s + num_before * self._context_s
        return int(2 * self._left_s / (first_s + math.sqrt(first_s**2 + 2 * self._context_s * self._left_s)))


class StepCeiling:
    def __init__(self, max_step_s: float) -> None:
        self._max_step_s = max_step_s
        self._decodes_s = 0.0
        self._tokens = WeightedLine(MEMORY_TOKENS)  # seconds a token by how many stand before it

    def learn_decodes(self, duration_s: float) -> None:
        """A step of decodes alone took so long."""
        self._decodes_s = duration_s

    def learn_prompts(self, num_tokens: int, mean_before: float, duration_s: float) -> None:
        """So did a step in which prompts had `num_tokens`, with `mean_before` tokens before each on average."""
        self._decodes_s = min(self._decodes_s, MOST_OF_DECODES * duration_s)
        self._tokens.add(num_tokens, mean_before, (duration_s - self._decodes_s) / num_tokens)

    def budget(self) -> TimeBudget:
        """For the prompts of a step with decodes. Before the first prompt it is the least there is."""
        if self._tokens.means is None:
            return TimeBudget(0.0, 0.0, 0.0)
        left_s = self._max_step_s - self._decodes_s
        mean_before, mean_s = self._tokens.means
        token_s, context_s = self._tokens.line() or (mean_s, 0.0)
        if context_s < 0.0:
            token_s, context_s = mean_s, 0.0
        elif token_s <= 0.0:
            token_s, context_s = 0.0, mean_s / mean_before
        return TimeBudget(left_s, max(token_s, 1e-9), context_s)
