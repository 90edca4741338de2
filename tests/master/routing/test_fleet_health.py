"""Who may be asked, and that each change is told once."""

import logging

import pytest

from master.routing.circuit import FAILURES_IN_A_ROW, CircuitState
from master.routing.fleet_health import FleetHealth
from master.routing.views import WorkerView
from protos.session_messages import Role
from tests.master.routing.test_router import worker

PREFILL, ONE, OTHER = (
    worker("prefill-0", Role.PREFILL),
    worker("decode-0", Role.DECODE),
    worker("decode-1", Role.DECODE),
)
FLEET = [PREFILL, ONE, OTHER]


def names(workers: list[WorkerView]) -> list[str]:
    return [one.name for one in workers]


def sick(health: FleetHealth, name: str, now_s: float = 0.0) -> None:
    for _ in range(FAILURES_IN_A_ROW):
        health.engine_failed(name, now_s, "the step raised")


def test_a_sick_worker_is_not_asked_until_a_probe_generates() -> None:
    health = FleetHealth()
    sick(health, "decode-0")
    assert names(health.askable(FLEET, 0.5)) == ["prefill-0", "decode-1"]
    assert health.next_change_s(0.5) == 1.0
    assert "decode-0" in names(health.askable(FLEET, 1.0))
    health.asked("decode-0", 1.0)
    assert "decode-0" not in names(health.askable(FLEET, 1.0))
    assert health.circuit_of("decode-0") is CircuitState.HALF_OPEN
    health.generated("decode-0", 1.5)
    assert names(health.askable(FLEET, 1.5)) == names(FLEET)
    assert health.next_change_s(1.5) is None


def test_a_cut_pair_is_kept_apart_and_both_serve_with_others() -> None:
    health = FleetHealth()
    health.transfer_failed("prefill-0", "decode-0", 0.0, "refused")
    assert names(health.takers("prefill-0", [ONE, OTHER], 0.0)) == ["decode-1"]
    assert names(health.takers("prefill-1", [ONE, OTHER], 0.0)) == ["decode-0", "decode-1"]
    assert names(health.askable(FLEET, 0.0)) == names(FLEET)
    assert health.cut_pairs == [("prefill-0", "decode-0")]
    health.paired("prefill-0", "decode-0", 1.0)
    health.transferred("prefill-0", "decode-0")
    assert health.cut_pairs == []
    assert health.num_pair_failures[("prefill-0", "decode-0")] == 1


def test_each_change_is_logged_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[int] = []
    health = FleetHealth(lambda: told.append(1))
    for _ in range(5):
        health.transfer_failed("prefill-0", "decode-0", 0.0, "refused")
    sick(health, "decode-1")
    health.engine_failed("decode-1", 0.0, "again")
    assert len(told) == len(caplog.records) == 2
    health.transferred("prefill-0", "decode-0")
    health.asked("decode-1", 1.0)
    health.generated("decode-1", 1.0)
    health.generated("decode-1", 1.0)
    assert len(told) == len(caplog.records) == 5
    assert "decode-1" in caplog.text and "the step raised" in caplog.text


def test_what_is_no_longer_known_is_forgotten() -> None:
    health = FleetHealth()
    sick(health, "decode-0")
    health.transfer_failed("prefill-0", "decode-0", 0.0, "refused")
    health.asked("prefill-0", 0.0)
    health.keep_only({"prefill-0", "decode-1"})
    assert health.circuits == {"prefill-0": CircuitState.CLOSED}
    assert health.cut_pairs == [] and not health.num_pair_failures
