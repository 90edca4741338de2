"""How many legs a worker takes, and how long they may wait for it."""

from dataclasses import dataclass

LEASE_SHARE = 0.25  # of a prefill worker's lease that a pull may wait for room; the rest is for the transfer


@dataclass(frozen=True, slots=True)
class LegLimits:
    """Legs beyond a number are refused at once. `max_queued_pulls` and `max_pull_wait_s` are for those that wait for
    room to pull their KV: it is kept for them on another worker, and their streams stand still meanwhile."""

    max_queued: int
    max_exports: int
    max_queued_pulls: int
    max_pull_wait_s: float

    def pull_wait_s(self, lease_s: float) -> float:
        """How long a pull may wait for room when its KV is kept for `lease_s`."""
        return min(self.max_pull_wait_s, LEASE_SHARE * lease_s)
