"""How long a step takes by the number of tokens in it: a line through the latest steps, each weighed by its tokens."""

import math

from protos.session_messages import PrefillSpeed

MEMORY_TOKENS = 20_000.0  # what is older than so many tokens counts for less than a third
LEAST_SPREAD = 0.05  # of the sizes of steps, relative to their mean; below it they tell nothing of what a step costs


class PrefillFit:
    """Weighted least squares with decaying sums.

    A step weighs as much as it has tokens, and is forgotten by tokens too: many small steps in a row (prompts that
    were mostly cached) say little about how fast tokens are computed, so they can't push out the few that do.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._tokens_squared = 0.0
        self._tokens_seconds = 0.0

    def add(self, num_tokens: int, duration_s: float) -> None:
        kept = math.exp(-num_tokens / MEMORY_TOKENS)
        self._weight = kept * self._weight + num_tokens
        self._tokens = kept * self._tokens + num_tokens * num_tokens
        self._seconds = kept * self._seconds + num_tokens * duration_s
        self._tokens_squared = kept * self._tokens_squared + num_tokens**3
        self._tokens_seconds = kept * self._tokens_seconds + num_tokens * num_tokens * duration_s

    def speed(self) -> PrefillSpeed | None:
        """None before the first step."""
        if self._weight == 0.0:
            return None
        mean_tokens, mean_s = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens_squared / self._weight - mean_tokens**2
        proportional = PrefillSpeed(0.0, max(mean_s / mean_tokens, 1e-9))
        if variance < (LEAST_SPREAD * mean_tokens) ** 2:
            return proportional
        token_s = (self._tokens_seconds / self._weight - mean_tokens * mean_s) / variance
        step_s = mean_s - token_s * mean_tokens
        return PrefillSpeed(step_s, token_s) if token_s > 0.0 and step_s >= 0.0 else proportional
