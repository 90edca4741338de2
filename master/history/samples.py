"""What a master measured lately: one sample every few seconds, for as many minutes as fit a page. No database."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from prometheus_client import CollectorRegistry

from master.history.log import RequestLog
from master.history.percentiles import Percentiles, percentiles, percentiles_of_buckets
from master.history.record import RequestRecord

SAMPLE_S = 5.0
NUM_SAMPLES = 120
ITL = "pdserve_itl_seconds"
ITL_BUCKETS = f"{ITL}_bucket"


@dataclass(frozen=True, slots=True)
class Sample:
    """What happened in the interval that ended at `at_s`; percentiles are None where nothing did."""

    at_s: float  # unix
    interval_s: float
    ended: int
    tokens: int
    running: int
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    errors: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    handed_off_bytes: int


@dataclass(slots=True)
class _Counted:
    """What has been taken into samples so far."""

    at_s: float
    ended: int = 0
    remembered: int = 0
    tokens: int = 0


class Samples:
    """`received_bytes` says how much KV each worker has pulled in this life of its, by any key that names the life."""

    def __init__(
        self,
        log: RequestLog,
        registry: CollectorRegistry,
        received_bytes: Callable[[], Mapping[tuple[str, int], int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ring: deque[Sample] = deque(maxlen=NUM_SAMPLES)
        self._log = log
        self._registry = registry
        self._received_bytes = received_bytes
        self._clock = clock
        self._counted = _Counted(clock())
        self._errors: Counter[str] = Counter()
        self._buckets: dict[float, float] = {}
        self._bytes: Mapping[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Samples until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.take()

    def take(self) -> None:
        before, self._counted = self._counted, self._now()
        records = self._latest(self._counted.remembered - before.remembered)
        self.ring.append(
            Sample(
                at_s=self._counted.at_s,
                interval_s=max(self._counted.at_s - before.at_s, 1e-3),
                ended=self._counted.ended - before.ended,
                tokens=self._counted.tokens - before.tokens,
                running=self._log.num_running,
                ttft_s=percentiles([one.timeline.first_token_s for one in records if one.completion_tokens]),
                tpot_s=percentiles([one.tpot_s for one in records if one.tpot_s is not None]),
                itl_s=self._itl(),
                errors=self._new_errors(),
                prompt_tokens=sum(one.prompt_tokens for one in records),
                cached_tokens=sum(one.cached_tokens for one in records),
                handed_off_bytes=self._new_bytes(),
            )
        )

    def _now(self) -> _Counted:
        return _Counted(self._clock(), self._log.num_ended.total(), self._log.num_remembered, self._log.num_tokens)

    def _latest(self, number: int) -> Sequence[RequestRecord]:
        return list(islice(reversed(self._log.recent), number))

    def _new_errors(self) -> dict[str, int]:
        new = self._log.errors - self._errors
        self._errors = Counter(self._log.errors)
        return dict(new)

    def _new_bytes(self) -> int:
        """A life that was not known before counts from its next sample on: this master may be the new one."""
        before, self._bytes = self._bytes, dict(self._received_bytes())
        return sum(number - before[life] for life, number in self._bytes.items() if life in before)

    def _itl(self) -> Percentiles | None:
        """From the histogram's buckets: single gaps are not kept."""
        buckets: Counter[float] = Counter()
        for metric in self._registry.restricted_registry([ITL_BUCKETS]).collect():
            for sample in metric.samples:
                buckets[float(sample.labels["le"])] += int(sample.value)
        before, self._buckets = self._buckets, dict(buckets)
        return percentiles_of_buckets({le: number - before.get(le, 0.0) for le, number in sorted(buckets.items())})

    def window(self, duration_s: float) -> list[Sample]:
        """Those of the last `duration_s`, the oldest one first."""
        since_s = self._clock() - duration_s
        return list(takewhile(lambda sample: sample.at_s >= since_s, reversed(self.ring)))[::-1]
