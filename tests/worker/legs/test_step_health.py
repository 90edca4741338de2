"""When a worker whose steps fail takes itself out, and when it comes back; on a virtual clock."""

from protos.sampling_messages import FinishReason
from protos.session_messages import ErrorCode, Failure, LegUpdate, Start, TokenDelta
from worker.legs.step_health import FAILURES_IN_A_ROW, PROBE_INTERVAL_S, StepHealth


class Rig:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.probes: list[Start] = []
        self.health = StepHealth(lambda health, start: self.probes.append(start), max_context=64)

    def turn(self, *problems: str, later_s: float = 0.0) -> str | None:
        """The reason after a turn in which these steps failed."""
        self.now_s += later_s
        for problem in problems:
            self.health.step_failed(problem)
        self.health.turned(self.now_s)
        return self.health.failing_reason

    def fail_until_out(self) -> None:
        for _ in range(FAILURES_IN_A_ROW):
            self.turn("out of memory")
        assert self.health.failing_reason == "out of memory" and len(self.probes) == 1

    def end_probe(self, finish_reason: FinishReason | None = None) -> None:
        leg = self.probes[-1].leg
        if finish_reason is None:
            self.health.deliver([LegUpdate(leg, failure=Failure(ErrorCode.INTERNAL, "out of memory"))], None)
        else:
            self.health.deliver([LegUpdate(leg, deltas=(TokenDelta(0, 0, (5, 6), (), finish_reason),))], None)
        self.health.deliver([LegUpdate(leg, ended=True)], None)


def test_failures_with_nothing_done_between_take_it_out() -> None:
    """R1"""
    rig = Rig()
    for _ in range(FAILURES_IN_A_ROW - 1):
        assert rig.turn("out of memory") is None
    assert rig.turn("NaN") == "NaN"


def test_a_leg_that_is_done_begins_the_count_anew() -> None:
    """R1"""
    rig = Rig()
    for _ in range(4 * FAILURES_IN_A_ROW):
        rig.turn("out of memory")
        rig.health.leg_done()
    assert rig.health.failing_reason is None


def test_the_legs_of_one_step_count_once() -> None:
    assert Rig().turn(*["out of memory"] * 10 * FAILURES_IN_A_ROW) is None


def test_turns_in_which_nothing_happens_count_neither_way() -> None:
    rig = Rig()
    for _ in range(FAILURES_IN_A_ROW - 1):
        rig.turn("out of memory")
        rig.turn()
    assert rig.turn("out of memory") == "out of memory"


def test_one_probe_runs_at_a_time_and_a_failed_one_is_followed_by_another() -> None:
    """R1"""
    rig = Rig()
    rig.fail_until_out()
    rig.turn(later_s=10 * PROBE_INTERVAL_S)
    assert len(rig.probes) == 1, "it still runs"
    rig.turn("out of memory")
    rig.end_probe()
    assert rig.turn() is not None and len(rig.probes) == 2
    rig.end_probe()
    rig.turn(later_s=PROBE_INTERVAL_S / 2)
    assert len(rig.probes) == 2, "not yet"
    rig.turn(later_s=PROBE_INTERVAL_S / 2)
    assert len(rig.probes) == 3 and len({probe.leg for probe in rig.probes}) == 3


def test_a_generation_of_its_own_brings_it_back() -> None:
    """R1: with a step of a prompt and one that decodes."""
    rig = Rig()
    rig.fail_until_out()
    assert rig.probes[0].sampling.max_tokens == 2
    rig.health.leg_done()
    assert rig.turn() is not None, "what others asked for before says nothing"
    rig.end_probe(FinishReason.LENGTH)
    assert rig.turn("out of memory") is None
