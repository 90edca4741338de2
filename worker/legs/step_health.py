"""Whether the engine's steps work, judged by what becomes of legs, and where they don't by a generation of its own.

    well     --FAILURES_IN_A_ROW turns in which a step failed, and no leg done between them-->  failing
    failing  --a generation of its own succeeds; one begins every PROBE_INTERVAL_S-->           well

A failing worker takes no legs, so that nobody's request has to find out whether it is well again.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Items

from protos.sampling_messages import SamplingParams
from protos.session_messages import LegUpdate, Stage, Start
from worker.legs.cache_news import CacheNews

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
PROBE_INTERVAL_S = 2.0
PROBE_LIMIT_S = 30.0
PROBE_PRIORITY = -(2**31)  # before all that masters ask for


class StepHealth:
    """A master of its own to the legs, which call it on the engine thread; `failing_reason` may be read on any."""

    def __init__(self, begin: Callable[["StepHealth", Start], None], max_context: int) -> None:
        self._begin = begin
        self._num_tokens = min(2, max_context - 1)  # a prompt's step chooses the first, a decode's the second
        self._num_failures = 0
        self._problem: str | None = None  # with a step of this turn
        self._num_probes = 0
        self._is_probing = False
        self._next_probe_s = 0.0
        self.failing_reason: str | None = None

    def step_failed(self, problem: str) -> None:
        self._problem = problem

    def leg_done(self) -> None:
        """One got what it was here for."""
        self._num_failures = 0

    def turned(self, now_s: float) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            self._num_failures += 1
            if self.failing_reason is None and self._num_failures >= FAILURES_IN_A_ROW:
                logger.error(
                    "%d steps failed in a row, no legs are taken until one works: %s", FAILURES_IN_A_ROW, problem
                )
                self.failing_reason = problem
        if self.failing_reason is not None and not self._is_probing and now_s >= self._next_probe_s:
            self._probe(now_s)

    def deliver(self, updates: Items[LegUpdate], news: CacheNews | None) -> None:
        """How a probe went."""
        for update in updates:
            if any(delta.finish_reason is not None for delta in update.deltas):
                logger.warning("steps work again")
                self.failing_reason = None
                self._num_failures = 0
            if update.ended:
                self._is_probing = False

    def deliver_cache_snapshot(self, hashes: Items[bytes]) -> None:
        pass

    def _probe(self, now_s: float) -> None:
        self._num_probes += 1
        self._is_probing = True
        self._next_probe_s = now_s + PROBE_INTERVAL_S
        start = Start(
            leg=self._num_probes,
            request_id="self-check",
            stage=Stage.WHOLE,
            prompt_ids=(0,),
            sampling=SamplingParams(max_tokens=self._num_tokens, temperature=0.0),
            priority=PROBE_PRIORITY,
            time_limit_s=PROBE_LIMIT_S,
        )
        self._begin(self, start)
