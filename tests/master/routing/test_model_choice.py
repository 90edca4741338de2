"""R7: of several models under one name a cluster serves one."""

from collections.abc import Sequence

import pytest

from master.routing.model_choice import Kind, choose_kind, difference
from master.routing.views import WorkerView
from protos.session_messages import Role
from tests.master.routing.test_router import worker

OLD, NEW = ("old", 1), ("new", 1)


def of(kind: Kind, *roles: Role) -> list[WorkerView]:
    model, transfer_protocol = kind
    return [
        worker(f"{model}-{number}", role, model=model, transfer_protocol=transfer_protocol)
        for number, role in enumerate(roles)
    ]


P, D, MIX, DEFAULT = Role.PREFILL, Role.DECODE, Role.MIX, Role.DEFAULT


@pytest.mark.parametrize(
    ("workers", "current", "served"),
    [
        ([], None, None),
        ([], OLD, OLD),
        (of(NEW, MIX), None, NEW),
        (of(OLD, MIX, MIX) + of(NEW, MIX), None, OLD),
        (of(OLD, MIX) + of(NEW, MIX), OLD, OLD),
        (of(OLD, MIX) + of(NEW, MIX), NEW, NEW),
        (of(OLD, MIX) + of(NEW, MIX, MIX), OLD, NEW),
        (of(NEW, MIX), OLD, NEW),
    ],
    ids=["nobody", "nobody left", "first", "most", "a tie", "the other tie", "outnumbered", "gone"],
)
def test_most_workers_decide_and_a_tie_changes_nothing(
    workers: Sequence[WorkerView], current: Kind | None, served: Kind | None
) -> None:
    assert choose_kind(workers, current) == served
    assert choose_kind(list(reversed(workers)), current) == served


def test_a_stranger_does_not_take_over_while_a_role_is_missing() -> None:
    assert choose_kind(of(OLD, P) + of(NEW, MIX), OLD) == OLD


def test_what_cannot_serve_does_not_take_over() -> None:
    assert choose_kind(of(OLD, P, D) + of(NEW, P, P, P), OLD) == OLD
    assert choose_kind(of(OLD, DEFAULT) + of(NEW, P, P, P), None) == OLD
    assert choose_kind(of(OLD, P, D) + of(NEW, P, P, D), OLD) == NEW


def test_the_difference_is_named() -> None:
    """R22: also another version of the transfer protocol."""
    assert difference(OLD, OLD) is None
    assert difference(NEW, OLD) == "it serves new, and this cluster old"
    assert difference(("old", 2), OLD) == "it speaks version 2 of the transfer protocol, and this cluster 1"
