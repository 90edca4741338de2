"""What the benchmark makes of what it saw."""

import pytest

from config.flags import FlagError
from pdserve.bench.serve import BenchConfig, Sample, summarise


def sample(ttft_s: float, gaps_s: tuple[float, ...], num_tokens: int) -> Sample:
    return Sample(ttft_s, ttft_s + sum(gaps_s), gaps_s, num_tokens, None)


def test_a_report_counts_failures_apart() -> None:
    report = summarise([sample(0.1, (0.02, 0.04), 3), None, sample(0.3, (0.06,), 2)], duration_s=2.0)
    assert (report.requests, report.failures, report.completion_tokens) == (3, 1, 5)
    assert report.requests_per_s == 1.0 and report.completion_tokens_per_s == 2.5
    assert report.ttft_ms.mean == pytest.approx(200) and report.ttft_ms.p99 == pytest.approx(300)
    assert report.itl_ms.mean == pytest.approx(40) and report.gap_ms.mean == pytest.approx(40)
    assert report.tpot_ms.p50 == pytest.approx(60) and report.tpot_ms.mean == pytest.approx(45)


def test_nothing_that_succeeded_is_a_report_too() -> None:
    report = summarise([None], duration_s=1.0)
    assert (report.failures, report.requests_per_s, report.ttft_ms.mean) == (1, 0.0, 0.0)


def test_a_shared_prefix_must_fit_the_prompt() -> None:
    with pytest.raises(FlagError, match="shared_prefix_tokens"):
        BenchConfig(prompt_tokens=8, shared_prefix_tokens=9)
