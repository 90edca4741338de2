"""How often failed attempts may be tried again, so that an outage does not become a storm."""

from dataclasses import dataclass

MAX_FAILURES_IN_A_ROW = 4  # of a sequence's attempts, without a new token in between
MAX_FAILURES = 16  # of a sequence's attempts; a request that kills its workers must not kill them all
SHARE = 0.1  # of requests that may be tried again for anything but a lost worker
BURST = 10.0  # retries in hand after a quiet time


@dataclass(frozen=True, slots=True)
class Failures:
    """Of one sequence's attempts so far."""

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

    A lost worker costs nothing here: its requests were fine and each moves on once. Failures that would repeat
    (transfers, engine errors, refusals) are paid for, and the budget grows with the traffic.
    """

    def __init__(self) -> None:
        self._tokens = BURST

    def count_request(self) -> None:
        self._tokens = min(BURST, self._tokens + SHARE)

    def try_spend(self) -> bool:
        """False when the budget is used up."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
