"""A circuit breaker for one worker, on a clock that its caller reads.

    CLOSED --too many failures of late--> OPEN --its pause is over, one leg goes through--> HALF_OPEN
    HALF_OPEN --the leg generates--> CLOSED
    HALF_OPEN --the leg fails--> OPEN, with a longer pause

An engine that fails fast looks idle, so load alone would send it everything. Only what a worker's own engine did
counts: what a client got wrong, a deadline, a full queue and a lost connection are never told here.
"""

from collections import deque
from enum import Enum

WINDOW_S = 10.0
MIN_FAILURES = 3  # in the window
FAILURE_SHARE = 0.3  # of the legs in the window
FAILURES_IN_A_ROW = 3  # however slowly they come
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 10.0
RELAPSE_S = 60.0  # a circuit that opens again so soon after it closed goes on with the pause it had


class CircuitState(Enum):
    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Circuit:
    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self._outcomes: deque[tuple[float, bool]] = deque()  # when, and whether it failed
        self._num_in_a_row = 0
        self._pause_s = MIN_PAUSE_S
        self._next_probe_s = 0.0
        self._closed_s: float | None = None

    def may_ask(self, now_s: float) -> bool:
        """Whether a leg may begin on the worker now."""
        return self.state is CircuitState.CLOSED or now_s >= self._next_probe_s

    def next_probe_s(self, now_s: float) -> float | None:
        """When a leg may begin, if that is later than now."""
        return None if self.may_ask(now_s) else self._next_probe_s

    def ask(self, now_s: float) -> None:
        """A leg begins. No other does for a pause, and then one may: a probe that is never heard of blocks nothing."""
        if self.state is not CircuitState.CLOSED:
            self.state = CircuitState.HALF_OPEN
            self._next_probe_s = now_s + self._pause_s

    def succeed(self, now_s: float) -> None:
        """The worker has generated."""
        self._num_in_a_row = 0
        if self.state is CircuitState.HALF_OPEN:
            self.state = CircuitState.CLOSED
            self._closed_s = now_s
            self._outcomes.clear()
        self._note(now_s, failed=False)

    def fail(self, now_s: float) -> None:
        """The worker's engine failed a leg."""
        self._num_in_a_row += 1
        self._note(now_s, failed=True)
        if self.state is CircuitState.HALF_OPEN:
            self._open(now_s, min(self._pause_s * 2, MAX_PAUSE_S))
        elif self.state is CircuitState.CLOSED and self._is_too_much():
            is_relapse = self._closed_s is not None and now_s - self._closed_s < RELAPSE_S
            self._open(now_s, min(self._pause_s * 2, MAX_PAUSE_S) if is_relapse else MIN_PAUSE_S)

    def _open(self, now_s: float, pause_s: float) -> None:
        self.state = CircuitState.OPEN
        self._pause_s = pause_s
        self._next_probe_s = now_s + pause_s

    def _note(self, now_s: float, *, failed: bool) -> None:
        self._outcomes.append((now_s, failed))
        while self._outcomes[0][0] < now_s - WINDOW_S:
            self._outcomes.popleft()

    def _is_too_much(self) -> bool:
        num_failures = sum(failed for _, failed in self._outcomes)
        is_large_share = num_failures >= MIN_FAILURES and num_failures >= FAILURE_SHARE * len(self._outcomes)
        return is_large_share or self._num_in_a_row >= FAILURES_IN_A_ROW
