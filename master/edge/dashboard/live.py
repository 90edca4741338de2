"""The latest minutes' figures as the page shows them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from master.history.percentiles import Percentiles
from master.history.samples import Sample, Samples

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One sample of the curves."""

    at_s: float
    requests_per_s: float
    tokens_per_s: float
    running: int
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    handed_off_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Live:
    """Rates are those of the last `window_s`; `cached_share` is None without prompts."""

    window_s: float
    requests_per_s: float
    tokens_per_s: float
    handed_off_bytes_per_s: float
    cached_share: float | None
    errors: dict[str, int]
    points: list[Point]


def live_of(samples: Samples) -> Live:
    window = samples.window(WINDOW_S)
    duration_s = sum(sample.interval_s for sample in window) or 1.0
    errors: Counter[str] = Counter()
    for sample in samples.ring:
        errors.update(sample.errors)
    return Live(
        window_s=WINDOW_S,
        requests_per_s=sum(sample.ended for sample in window) / duration_s,
        tokens_per_s=sum(sample.tokens for sample in window) / duration_s,
        handed_off_bytes_per_s=sum(sample.handed_off_bytes for sample in window) / duration_s,
        cached_share=_cached_share(window),
        errors=dict(errors),
        points=[_point(sample) for sample in samples.ring],
    )


def _cached_share(window: Sequence[Sample]) -> float | None:
    num_tokens = sum(sample.prompt_tokens for sample in window)
    return sum(sample.cached_tokens for sample in window) / num_tokens if num_tokens else None


def _point(sample: Sample) -> Point:
    return Point(
        at_s=sample.at_s,
        requests_per_s=sample.ended / sample.interval_s,
        tokens_per_s=sample.tokens / sample.interval_s,
        running=sample.running,
        ttft_s=sample.ttft_s,
        tpot_s=sample.tpot_s,
        itl_s=sample.itl_s,
        handed_off_bytes_per_s=sample.handed_off_bytes / sample.interval_s,
    )
