import pytest

from worker.faults.plan import Action, Fault, FaultPlan, FaultPoint, Place, Repeat


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("transfer.close@3", Fault(Place.TRANSFER, Action.CLOSE, 3)),
        ("transfer.corrupt@1", Fault(Place.TRANSFER, Action.CORRUPT, 1)),
        ("session.drop@*4", Fault(Place.SESSION, Action.DROP, 4, Repeat.EVERY)),
        ("step.raise@10+", Fault(Place.STEP, Action.RAISE, 10, Repeat.ALWAYS)),
        ("step.delay=0.25@2", Fault(Place.STEP, Action.DELAY, 2, seconds=0.25)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert Fault.parse(text) == fault


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "PLACE.ACTION"),
        ("step.raise", "PLACE.ACTION"),
        ("step.raise@", "PLACE.ACTION"),
        ("step.raise@*3+", "PLACE.ACTION"),
        ("step.delay=-1@3", "PLACE.ACTION"),
        ("kitchen.raise@1", "no place of transfer, session, step"),
        ("session.nan@1", "no action of delay, drop, close"),
        ("step.delay@1", "seconds for a delay"),
        ("step.raise=1@1", "seconds for a delay"),
        ("step.raise@0", "from 1"),
    ],
)
def test_what_makes_no_fault_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Fault.parse(text)


def struck(*texts: str, num_passing: int = 8) -> list[int]:
    point = FaultPoint(Fault.parse(text) for text in texts)
    return [count for count in range(1, num_passing + 1) if point.passing()]


def test_when_a_fault_strikes() -> None:
    assert struck("step.nan@3") == [3]
    assert struck("step.nan@6+") == [6, 7, 8]
    assert struck("step.nan@*3") == [3, 6]
    assert struck("step.nan@1", "step.raise@*4") == [1, 4, 8]


def test_arming_counts_anew() -> None:
    point = FaultPoint()
    assert [point.passing() for _ in range(3)] == [[], [], []]
    fault = Fault.parse("step.nan@2")
    point.arm(fault)
    assert [point.passing(), point.passing(), point.count] == [[], [fault], 2]


def test_places_that_nothing_is_asked_of_have_no_point() -> None:
    plan = FaultPlan.parse(["step.nan@3", "transfer.drop@1"])
    assert plan.session is None and plan.step is not None and plan.transfer is not None
    assert FaultPlan.parse([]) == FaultPlan()
