"""Steps that fail when they are asked to: the legs in them fail, and the engine goes on."""

import time
from pathlib import Path

import pytest

from protos.session_messages import ErrorCode
from tests.worker.engines.torch.engine_rig import Node
from tests.worker.engines.torch.reference import prompt
from worker.faults.plan import FaultPlan
from worker.legs.step_health import FAILURES_IN_A_ROW


@pytest.mark.parametrize("action", ["raise", "nan"])
def test_the_leg_of_a_faulty_step_fails_and_the_next_one_does_not(tiny_llama: Path, llama: Node, action: str) -> None:
    with Node(tiny_llama, FaultPlan.parse([f"step.{action}@3"])) as node:
        first = node.start(prompt(20))
        assert node.master.failure(first.leg).code is ErrorCode.INTERNAL
        assert len(node.master.outcome(first.leg).token_ids[0]) == 2
        assert node.run(prompt(20)).token_ids == llama.run(prompt(20)).token_ids


def test_a_sick_engine_fails_everything(tiny_llama: Path) -> None:
    with Node(tiny_llama, FaultPlan.parse(["step.raise@1+"])) as node:
        starts = [node.start(prompt(20)) for _ in range(FAILURES_IN_A_ROW)]
        assert {node.master.failure(start.leg).code for start in starts} == {ErrorCode.INTERNAL}


def test_a_slow_step_is_only_slow(tiny_llama: Path, llama: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with Node(tiny_llama, FaultPlan.parse(["step.delay=30@*5"])) as node, monkeypatch.context() as patched:
        patched.setattr(time, "sleep", slept.append)
        assert node.run(prompt(20)).token_ids == llama.run(prompt(20)).token_ids
    assert slept.count(30.0) == 4
