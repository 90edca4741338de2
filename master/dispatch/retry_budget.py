"""How often failed attempts may be tried again, so that an outage does not become a storm."""

from dataclasses import dataclass

MAX_FAILURES_IN_A_ROW = 4  # of a sequence's attempts, without a new token in between
MAX_FAILURES = 16  # of a sequence's attempts


@dataclass(frozen=True, slots=True)
class Failures:
    """How often one sequence's attempts have failed so far."""

    total: int = 0
    in_a_row: int = 0

    def another(self, has_progressed: bool) -> "Failures":
        """`has_progressed`: the attempt that failed gave new tokens before."""
        return Failures(self.total + 1, 1 if has_progressed else self.in_a_row + 1)

    @property
    def may_try_again(self) -> bool:
        return self.total < MAX_FAILURES and self.in_a_row < MAX_FAILURES_IN_A_ROW


class RetryBudget:
    """Shared by all requests of a master.

    What an engine failed is paid for here, and the budget grows by `share` with each request, up to `burst`. A lost
    worker, a full queue and a pair that is cut cost nothing: each request moves on once, and the next one is not sent
    there. Nor does an engine whose circuit is open, as that lets through only what it can't cost much to lose.
    """

    def __init__(self, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self.left = burst

    def count_request(self) -> None:
        self.left = min(self._burst, self.left + self._share)

    def try_spend(self) -> bool:
        """False when the budget is used up."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
