"""How long a step takes by the number of tokens in it: a line through the latest steps, each weighed by its tokens."""

from protos.session_messages import PrefillSpeed
from worker.engines.torch.weighted_line import WeightedLine

MEMORY_TOKENS = 20_000.0  # what is older than so many tokens counts for less than a third


class PrefillFit:
    """A step weighs as much as it has tokens, and is forgotten by tokens too.

    Many small steps in a row (prompts that were mostly cached) say little about how fast tokens are computed, so they
    can't push out the few that do.
    """

    def __init__(self) -> None:
        self._steps = WeightedLine(MEMORY_TOKENS)

    def add(self, num_tokens: int, duration_s: float) -> None:
        self._steps.add(num_tokens, num_tokens, duration_s)

    def speed(self) -> PrefillSpeed | None:
        """None before the first step."""
        if self._steps.means is None:
            return None
        mean_tokens, mean_s = self._steps.means
        step_s, token_s = self._steps.line() or (0.0, 0.0)
        if token_s > 0.0 and step_s >= 0.0:
            return PrefillSpeed(step_s, token_s)
        return PrefillSpeed(0.0, max(mean_s / mean_tokens, 1e-9))
