"""Steps that raise, hang or yield NaN: what was in them fails, and the engine knows when to take itself out."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protos.session_messages import ErrorCode, Stage
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import (
    BLOCK_SIZE,
    GREEDY,
    PATIENCE_S,
    Node,
    held_step,
)
from tests.worker.engines.torch.reference import prompt
from worker.legs.step_health import FAILURES_IN_A_ROW


def test_a_failing_step_fails_its_legs_and_the_engine_goes_on(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node(tiny_llama) as node:
        expected = node.run(prompt(20, 30)).token_ids
        runner = node.engine._runner  # the only way to a step that fails
        for error in (RuntimeError("out of memory"), TypeError("not a tensor")):

            def fail(chunks: object, error: Exception = error) -> None:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(runner, "step", fail)
                starts = [node.start(prompt(20, 30)), node.start(prompt(20, 30), stage=Stage.PREFILL)]
                for start in starts:
                    failure = node.master.failure(start.leg)
                    assert failure.code is ErrorCode.INTERNAL and str(error) in failure.message
            node.quiesce()
            assert node.run(prompt(20, 30)).token_ids == expected


def test_logits_of_nan_fail_that_leg_and_leave_nothing_in_the_cache(tiny_llama: Path) -> None:
    poisoned, healthy = prompt(40, 31), prompt(40, 32)
    assert poisoned[5] not in healthy
    with Node(tiny_llama) as node:
        with torch.inference_mode():
            node.embedding[poisoned[5]] = torch.nan
        starts = [node.start(ids, dataclasses.replace(GREEDY, max_tokens=1)) for ids in (poisoned, healthy)]
        assert node.master.failure(starts[0].leg).code is ErrorCode.INTERNAL
        assert node.master.result(starts[1]).failure is None
        node.flush()
        assert len(node.master.cached) == len(healthy) // BLOCK_SIZE


def test_stop_returns_in_time_though_a_step_hangs(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R30"""
    with Node(tiny_llama) as node:
        with held_step(node, monkeypatch) as is_held:
            node.start(prompt(20, 30))
            assert is_held.wait(PATIENCE_S)
            assert not node.engine.stop(0.01)
        node.close()


def test_nothing_that_ended_in_nan_stays_in_the_cache(tiny_llama: Path) -> None:
    """R10: neither the chunks before the one with NaN, nor what they were built on."""
    ids, sampling = prompt(60, 31), dataclasses.replace(GREEDY, max_tokens=4)
    with Node(tiny_llama, max_tokens_per_step=BLOCK_SIZE) as node:
        embedding = node.embedding
        assert ids[50] not in ids[:48]
        was = embedding[ids[50]].clone()
        with torch.inference_mode():
            embedding[ids[50]] = torch.nan
        assert node.master.failure(node.start(ids, sampling).leg).code is ErrorCode.INTERNAL
        node.flush()
        assert node.pool.snapshot() == [] and node.master.cached == set()
        with torch.inference_mode():
            embedding[ids[50]] = was
        expected = node.run(ids, sampling).token_ids
        (first,) = node.pool.match(node.pool.snapshot()[:1])  # KV that went bad unnoticed
        node.pool.release([first])
        node.runner._memory.tensor[first] = torch.nan
        assert node.master.failure(node.start(ids, sampling).leg).code is ErrorCode.INTERNAL
        assert node.run(ids, sampling).token_ids == expected


def test_an_engine_whose_steps_fail_takes_no_legs_until_one_of_its_own_worked(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1"""

    def fail(chunks: object) -> None:
        raise RuntimeError("out of memory")

    with Node(tiny_llama) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.engine._runner, "step", fail)
            for number in range(FAILURES_IN_A_ROW):
                assert node.legs.failing_reason is None, number
                assert node.master.failure(node.start(prompt(20, 30)).leg).code is ErrorCode.INTERNAL
                node.flush()
            refusal = node.master.failure(node.start(prompt(20, 30)).leg)
            assert refusal.code is ErrorCode.UNAVAILABLE and "out of memory" in refusal.message
            assert node.legs.failing_reason is not None and "out of memory" in node.legs.failing_reason
        eventually(lambda: node.legs.failing_reason is None, "a step of its own works")
        assert node.run(prompt(20, 30)).failure is None


def test_what_clients_ask_for_never_makes_an_engine_fail(tiny_llama: Path) -> None:
    """R1"""
    nothing_left = dataclasses.replace(GREEDY, bad_words_ids=tuple((token_id,) for token_id in range(512)))
    with Node(tiny_llama) as node:
        for _ in range(2 * FAILURES_IN_A_ROW):
            failure = node.master.failure(node.start(prompt(20, 30), nothing_left).leg)
            assert failure.code is ErrorCode.INVALID_ARGUMENT
        node.flush()
        assert node.legs.failing_reason is None


def test_steps_that_fail_now_and_then_are_no_reason_to_stop(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1"""

    def fail(chunks: object) -> None:
        raise RuntimeError("once")

    with Node(tiny_llama) as node:
        for _ in range(2 * FAILURES_IN_A_ROW):
            with monkeypatch.context() as patched:
                patched.setattr(node.engine._runner, "step", fail)
                assert node.master.failure(node.start(prompt(20, 30)).leg).code is ErrorCode.INTERNAL
            assert node.run(prompt(20, 30)).failure is None
