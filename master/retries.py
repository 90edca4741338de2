"""How often failed attempts may be tried again, so that an outage does not become a storm."""

MAX_ATTEMPTS = 4  # of one request
SHARE = 0.1  # of requests that may be tried again for anything but a lost worker
BURST = 10.0  # retries in hand after a quiet time


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
