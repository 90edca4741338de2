"""One snapshot decides: a route, or what stands in the way."""

from collections.abc import Collection, Sequence

import pytest

from master.routing.route_choice import Fleet, Hindrance, NoRoute, choose_route, is_fallback
from master.routing.router import Route, holds_all
from master.routing.views import WorkerView
from protos.session_messages import Role, Stage
from tests.master.routing.test_router import DECODE, DEFAULT, MIX, PREFILL, prompt, worker


def fleet(
    *connected: WorkerView,
    without: Sequence[WorkerView] = (),
    lonely: Collection[str] = (),
    refused: Collection[str] = (),
    is_complete: bool = True,
) -> Fleet:
    askable = [one for one in connected if one not in without]
    return Fleet(connected, askable, lonely, refused, is_complete)


def hindrance(choice: Route | NoRoute) -> tuple[Hindrance, str]:
    assert isinstance(choice, NoRoute)
    return choice.hindrance, choice.reason


def chosen(choice: Route | NoRoute) -> tuple[str, Stage, bool]:
    assert isinstance(choice, Route)
    return choice.worker.name, choice.stage, is_fallback(choice)


@pytest.mark.parametrize("connected", [[PREFILL], [DECODE]])
def test_any_engine_serves_rather_than_nobody(connected: list[WorkerView]) -> None:
    """R25"""
    (only,) = connected
    assert chosen(choose_route(fleet(only), prompt(), (), any_role=True)) == (only.name, Stage.WHOLE, True)
    kind, reason = hindrance(choose_route(fleet(only), prompt(), (), any_role=False))
    assert kind is Hindrance.NOT_NOW and "MIX" in reason


def test_roles_hold_as_long_as_they_can_be_had() -> None:
    assert chosen(choose_route(fleet(PREFILL, DECODE), prompt(), (), any_role=True)) == (
        "prefill-0",
        Stage.PREFILL,
        False,
    )
    assert chosen(choose_route(fleet(DECODE, DEFAULT), prompt(), (), any_role=True)) == (
        "default-0",
        Stage.WHOLE,
        False,
    )


def test_a_sick_decode_worker_leaves_the_whole_request_to_prefill() -> None:
    choice = choose_route(fleet(PREFILL, DECODE, without=[DECODE]), prompt(), (), any_role=True)
    assert chosen(choice) == ("prefill-0", Stage.WHOLE, True)


def test_a_worker_on_pause_is_waited_for() -> None:
    kind, reason = hindrance(choose_route(fleet(MIX, without=[MIX]), prompt(), (), any_role=True))
    assert kind is Hindrance.NOT_NOW
    assert "mix-0" in reason


def test_no_room_is_said_only_when_all_refused() -> None:
    """R32"""
    other = worker("mix-1", Role.MIX)
    one = fleet(MIX, other, without=[MIX], refused={"mix-0"})
    assert chosen(choose_route(one, prompt(), (), any_role=True))[0] == "mix-1"
    both = fleet(MIX, other, without=[MIX, other], refused={"mix-0", "mix-1"})
    kind, reason = hindrance(choose_route(both, prompt(), (), any_role=True))
    assert kind is Hindrance.NO_ROOM
    assert "mix-0" in reason and "mix-1" in reason


@pytest.mark.parametrize(("is_complete", "expected"), [(True, Hindrance.NEVER), (False, Hindrance.NOT_NOW)])
def test_too_large_is_final_only_when_nobody_is_away(is_complete: bool, expected: Hindrance) -> None:
    """R23: the worker that is away may be the large one."""
    small = worker("small", Role.MIX, num_blocks=3)
    kind, reason = hindrance(choose_route(fleet(small, is_complete=is_complete), prompt(), (), any_role=True))
    assert kind is expected
    assert "40 tokens" in reason


def test_no_worker_is_a_reason_to_wait() -> None:
    assert hindrance(choose_route(fleet(), prompt(), (), any_role=True)) == (
        Hindrance.NOT_NOW,
        "no worker is connected",
    )


def test_a_prefill_worker_that_reaches_nobody_is_the_last_choice() -> None:
    """R2"""
    other = worker("prefill-1", Role.PREFILL, queued_prefill_tokens=10_000)
    choice = choose_route(fleet(PREFILL, other, DECODE, lonely={"prefill-0"}), prompt(), (), any_role=False)
    assert chosen(choice)[0] == "prefill-1"
    choice = choose_route(fleet(PREFILL, DECODE, lonely={"prefill-0"}), prompt(), (), any_role=False)
    assert chosen(choice)[:2] == ("prefill-0", Stage.PREFILL)


def test_decoding_here_needs_room_for_the_whole_sequence() -> None:
    """R13"""
    small = worker("prefill-0", Role.PREFILL, num_blocks=9)  # 36 tokens
    assert holds_all(small, prompt(37))
    assert not holds_all(small, prompt(38))
