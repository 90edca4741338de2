"""When a call is tried again, and within which time; the same for blocking and asyncio clients."""

import random
import time
from dataclasses import dataclass

import grpc

from client.errors import DeadlineExceeded, PdserveError, TryLater, error_of

BACKOFF_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Only calls that have given nothing yet are tried again, and only when the server is busy or can't be reached.

    The wait is what the server asked for, or else `first_wait_s`, doubling up to `longest_wait_s`; each with jitter.
    """

    max_attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0

    def wait_s(self, attempts: int, error: PdserveError) -> float | None:
        """How long to wait after the `attempts`-th attempt has failed; None when it is not to be tried again."""
        if not isinstance(error, TryLater) or attempts >= self.max_attempts:
            return None
        backoff_s = min(self.longest_wait_s, self.first_wait_s * BACKOFF_FACTOR ** (attempts - 1))
        return backoff_s if error.retry_after_s is None else max(backoff_s, error.retry_after_s)


DEFAULT_RETRIES = RetryPolicy()


class Tries:
    """The attempts of one call, all within one deadline."""

    def __init__(self, policy: RetryPolicy, timeout_s: float) -> None:
        self._policy = policy
        self._deadline_s = time.monotonic() + timeout_s
        self._count = 0
        self._last_error: PdserveError | None = None

    def next_timeout_s(self) -> float:
        """Begins an attempt; what is left of the call's time. Raises DeadlineExceeded, or why the last one failed."""
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise self._last_error or DeadlineExceeded("the call's time limit is not above 0 s")
        self._count += 1
        return remaining_s

    def wait_after(self, failure: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt. Raises the failure's PdserveError when there is to be none."""
        self._last_error = error_of(failure)
        wait_s = self._policy.wait_s(self._count, self._last_error)
        if wait_s is None or time.monotonic() + wait_s >= self._deadline_s:
            raise self._last_error
        return wait_s * random.uniform(1.0, 1.2)
