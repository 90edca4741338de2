"""Percentiles of what was measured, and of what only a histogram knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p95: float
    p99: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Linear between order statistics; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return Percentiles(*(_at(ordered, share) for share in (0.5, 0.95, 0.99)))


def percentiles_of_buckets(cumulative: Mapping[float, float]) -> Percentiles | None:
    """Linear within a bucket. `cumulative` has, by upper bound and in its order, how many were at most that."""
    total = max(cumulative.values(), default=0.0)
    if total <= 0:
        return None
    return Percentiles(*(_in_buckets(cumulative, share * total) for share in (0.5, 0.95, 0.99)))


def _at(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _in_buckets(cumulative: Mapping[float, float], rank: float) -> float:
    low, below = 0.0, 0.0
    for bound, number in cumulative.items():
        if number >= rank and number > below:
            return low if bound == inf else low + (bound - low) * (rank - below) / (number - below)
        low, below = bound, number
    return low
