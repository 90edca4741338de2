"""How many legs a worker takes, and how long they may wait for it."""

from dataclasses import dataclass

from protos.session_messages import ErrorCode, Failure, Stage

LEASE_SHARE = 0.25  # of a prefill worker's lease that a pull may wait for room; the rest is for the transfer


@dataclass(frozen=True, slots=True)
class LegCounts:
    """Legs of this moment: those that wait to begin, those of them that will pull, those others are to pull from."""

    num_queued: int
    num_queued_pulls: int
    num_hand_offs: int


@dataclass(frozen=True, slots=True)
class LegLimits:
    """Legs beyond a number are refused at once. `max_queued_pulls` and `max_pull_wait_s` are for those that wait for
    room to pull their KV: it is kept for them on another worker, and their streams stand still meanwhile."""

    max_queued: int
    max_exports: int
    max_queued_pulls: int
    max_pull_wait_s: float

    def refusal(self, stage: Stage, counts: LegCounts) -> Failure | None:
        """Why another leg is one too many."""
        if counts.num_queued >= self.max_queued:
            return _exhausted(f"{counts.num_queued} legs are queued")
        if stage is Stage.PREFILL and counts.num_hand_offs >= self.max_exports:
            return _exhausted(f"{counts.num_hand_offs} legs are for decode workers already")
        if stage is Stage.DECODE and counts.num_queued_pulls >= self.max_queued_pulls:
            return _exhausted(f"{counts.num_queued_pulls} legs wait for room to pull already")
        return None

    def pull_wait_s(self, lease_s: float) -> float:
        """How long a pull may wait for room when its KV is kept for `lease_s`."""
        return min(self.max_pull_wait_s, LEASE_SHARE * lease_s)


def _exhausted(message: str) -> Failure:
    return Failure(ErrorCode.RESOURCE_EXHAUSTED, message)
