import pytest

from protos.session_messages import ErrorCode, Stage
from worker.legs.leg_limits import LegCounts, LegLimits

LIMITS = LegLimits(max_queued=10, max_exports=5, max_queued_pulls=3, max_pull_wait_s=4.0)


@pytest.mark.parametrize(
    ("counts", "refused"),
    [
        (LegCounts(9, 2, 4), ()),
        (LegCounts(10, 0, 0), tuple(Stage)),
        (LegCounts(3, 3, 0), (Stage.DECODE,)),
        (LegCounts(0, 0, 5), (Stage.PREFILL,)),
    ],
)
def test_a_leg_too_many_is_refused_by_its_stage(counts: LegCounts, refused: tuple[Stage, ...]) -> None:
    """R6"""
    for stage in Stage:
        failure = LIMITS.refusal(stage, counts)
        assert (failure is not None) is (stage in refused), stage
        assert failure is None or failure.code is ErrorCode.RESOURCE_EXHAUSTED


def test_a_pull_never_waits_for_most_of_the_lease() -> None:
    """R6"""
    assert LIMITS.pull_wait_s(60.0) == 4.0
    assert LIMITS.pull_wait_s(8.0) == 2.0
