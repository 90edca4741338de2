"""An engine that has too little of something: blocks, slots, room in its queue."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcache.transfer.handle import KvHandle
from protos.session_messages import ErrorCode, Stage
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import (
    GREEDY,
    PATIENCE_S,
    SEEDED,
    ForeignPrefill,
    Node,
    hand_off,
    held_step,
    offer,
)
from tests.worker.engines.torch.reference import Reference, prompt

SHORT = dataclasses.replace(GREEDY, max_tokens=4)

GetReference = Callable[[Path], Reference]


def test_prompt_logprobs_survive_preemption(tiny_llama: Path, reference: GetReference) -> None:
    sampling = dataclasses.replace(GREEDY, prompt_logprobs=0, max_tokens=2)
    with Node(tiny_llama, num_blocks=8, max_tokens_per_step=6, max_num_seqs=2) as node:
        # the first grows over a block boundary while the second is in the middle of its prompt
        older = node.start(prompt(30, 14), dataclasses.replace(GREEDY, max_tokens=40))
        node.master.wait(older.leg, lambda o: o.prefilled is not None)
        younger = node.start(prompt(60, 14), sampling)
        outcome = node.master.result(younger)
        expected = reference(tiny_llama).logprobs(younger.prompt_ids)
        assert len(outcome.prompt_logprobs) == 60
        for position, entry in enumerate(outcome.prompt_logprobs[1:], start=1):
            assert entry.logprob == pytest.approx(float(expected[position - 1, younger.prompt_ids[position]]), abs=1e-4)


def test_a_tiny_pool_preempts_and_gives_the_same_ids(tiny_llama: Path, reference: GetReference) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=60)
    with Node(tiny_llama, num_blocks=12) as node:
        starts = [node.start(prompt(30 + index, 15), long) for index in range(5)]
        for start in starts:
            assert node.master.result(start).token_ids[0] == reference(tiny_llama).greedy(start.prompt_ids, 60)
        assert node.engine.figures.num_preemptions > 0


def test_samples_in_a_tiny_pool_preempt_each_other_and_give_the_same_ids(tiny_llama: Path, llama: Node) -> None:
    sampling = dataclasses.replace(SEEDED, max_tokens=60)
    indexes = (0, 1, 2, 3)
    with Node(tiny_llama, num_blocks=12) as node:
        outcome = node.run(prompt(30, 16), sampling, sequences=indexes)
        assert node.engine.figures.num_preemptions > 0
        assert outcome.token_ids == llama.run(prompt(30, 16), sampling, sequences=indexes).token_ids


def test_tiny_pools_on_both_sides_of_a_hand_off(tiny_llama: Path, reference: GetReference) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=50)
    with Node(tiny_llama, num_blocks=8, max_tokens_per_step=20) as prefill, Node(tiny_llama, num_blocks=8) as decode:
        firsts = [prefill.start(prompt(40 + index, 17), long, Stage.PREFILL) for index in range(6)]
        seconds = []
        for first in firsts:
            source = prefill.master.wait(first.leg, lambda o: o.started is not None).kv_handle
            seconds.append(decode.start(first.prompt_ids, long, Stage.DECODE, kv_handle=source))
        for second in seconds:
            outcome = decode.master.result(second)
            assert outcome.failure is None, outcome.failure
            assert outcome.token_ids[0] == reference(tiny_llama).greedy(second.prompt_ids, 50)


def test_a_higher_priority_goes_first(tiny_llama: Path) -> None:
    order: list[int] = []
    with Node(tiny_llama, max_num_seqs=1) as node:

        def note(leg: int, is_finished: bool) -> None:
            if is_finished:
                order.append(leg)

        node.master.on_update(lambda u: note(u.leg, any(d.finish_reason is not None for d in u.deltas)))
        running = node.start(prompt(10, 22), dataclasses.replace(GREEDY, max_tokens=600))
        node.master.wait(running.leg, lambda o: o.started is not None)
        later = node.start(prompt(10, 22), priority=5)
        sooner = node.start(prompt(10, 22), priority=-5)
        for start in (later, sooner):
            node.master.result(start)
        assert order == [running.leg, sooner.leg, later.leg]


def test_a_resumed_stream_keeps_the_age_of_its_request(tiny_llama: Path) -> None:
    """R12"""
    order: list[int] = []
    with Node(tiny_llama, max_num_seqs=1) as node:
        node.master.on_update(lambda update: order.append(update.leg) if update.started is not None else None)
        running = node.start(prompt(10, 22), dataclasses.replace(GREEDY, max_tokens=600))
        node.master.wait(running.leg, lambda o: o.started is not None)
        young = node.start(prompt(10, 22))
        resumed = node.start(prompt(10, 22), output_ids=(1, 2), age_s=30.0)
        for start in (young, resumed):
            node.master.result(start)
        assert order == [running.leg, resumed.leg, young.leg]


def test_a_leg_waits_from_when_it_was_asked_for(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R40: and not from when the engine, busy with a step, gets to it."""
    with Node(tiny_llama) as node:
        with held_step(node, monkeypatch) as is_held:
            node.start(prompt(10, 22))
            assert is_held.wait(PATIENCE_S)
            begun_s = time.monotonic()
            waiting = node.start(prompt(10, 23))
            busy_until_s = time.monotonic() + 0.05
            eventually(lambda: time.monotonic() > busy_until_s, "the step takes a while")
        started = node.master.wait(waiting.leg, lambda o: o.started is not None).started
        assert started is not None and 0.05 <= started.queue_s <= time.monotonic() - begun_s


def test_a_refused_leg_says_why(tiny_llama: Path) -> None:
    with Node(tiny_llama, num_blocks=4) as node:
        too_large = node.start(prompt(60, 26))
        failure = node.master.failure(too_large.leg)
        assert failure.code is ErrorCode.RESOURCE_EXHAUSTED and "5 blocks" in failure.message


def test_a_prefill_worker_with_a_small_pool_prefills_and_says_what_it_cannot_decode(tiny_llama: Path) -> None:
    """R13"""
    long = dataclasses.replace(GREEDY, max_tokens=200)
    with Node(tiny_llama, num_blocks=4) as small, Node(tiny_llama) as large:
        _, decoded = hand_off(small, large, prompt(40, 26), long)
        assert len(decoded.token_ids[0]) == 200
        kept = small.start(prompt(40, 26), long, Stage.PREFILL)
        small.master.wait(kept.leg, lambda o: bool(o.token_ids))
        small.legs.decode_here(small.master, kept.leg)
        failure = small.master.failure(kept.leg)
        assert failure.code is ErrorCode.RESOURCE_EXHAUSTED and "15 blocks" in failure.message


def test_sequences_beyond_the_slots_take_turns_and_give_the_same_ids(tiny_llama: Path, llama: Node) -> None:
    """R12, R14: on one worker and over two, and though another stream never leaves the engine empty."""
    sequences = tuple(range(9))
    expected = llama.run(prompt(40, 26), SEEDED, sequences=sequences).token_ids
    with Node(tiny_llama, max_num_seqs=4) as node, Node(tiny_llama, max_num_seqs=2) as prefill:
        busy = node.start(prompt(10, 27), dataclasses.replace(GREEDY, max_tokens=1900))
        assert node.run(prompt(40, 26), SEEDED, sequences=sequences).token_ids == expected
        _, decoded = hand_off(prefill, node, prompt(40, 26), SEEDED, sequences=sequences)
        assert decoded.token_ids == expected
        node.cancel(busy)


def test_a_full_decode_worker_refuses_pulls_at_once(tiny_llama: Path) -> None:
    """R6: 300 starts on a held pool."""
    with Node(tiny_llama, num_blocks=4, max_queued_pulls=5) as decode, ForeignPrefill(decode) as foreign:
        _, source = foreign.open()
        holding = decode.start(prompt(60), stage=Stage.DECODE, kv_handle=source, sampling=SHORT)
        decode.master.wait(holding.leg, lambda o: o.started is not None)
        starts = [decode.start(prompt(60), stage=Stage.DECODE, kv_handle=source, sampling=SHORT) for _ in range(300)]
        decode.flush()
        failures = [decode.master.outcome(start.leg).failure for start in starts]
        refused = [failure for failure in failures if failure is not None]
        assert len(refused) == 295 and {failure.code for failure in refused} == {ErrorCode.RESOURCE_EXHAUSTED}
        for start in (holding, *starts):
            decode.cancel(start)


def test_a_pull_that_waits_for_room_too_long_blames_the_decode_worker(tiny_llama: Path) -> None:
    """R6: after a part of the lease, while the KV is still there for another to decode."""
    with (
        Node(tiny_llama, num_blocks=4) as decode,
        Node(tiny_llama, kv_lease_s=2.0) as prefill,
        ForeignPrefill(decode) as foreign,
    ):
        _, source = foreign.open()
        holding = decode.start(prompt(60), stage=Stage.DECODE, kv_handle=source, sampling=SHORT)
        first = offer(prefill)
        second = decode.start(
            first.prompt_ids, stage=Stage.DECODE, kv_handle=prefill.master.outcome(first.leg).kv_handle
        )
        failure = decode.master.failure(second.leg)
        assert failure.code is ErrorCode.RESOURCE_EXHAUSTED and "no room to pull" in failure.message
        assert decode.master.outcome(second.leg).started is None
        prefill.legs.decode_here(prefill.master, first.leg)
        assert prefill.master.result(first).failure is None
        decode.cancel(holding)


def test_a_full_queue_refuses(tiny_llama: Path) -> None:
    with Node(tiny_llama, max_queued=1, max_num_seqs=1) as node:
        running = node.start(prompt(10, 27), dataclasses.replace(GREEDY, max_tokens=1000))
        node.master.wait(running.leg, lambda o: o.started is not None)
        queued, refused = node.start(prompt(10, 27)), node.start(prompt(10, 27))
        assert node.master.failure(refused.leg).code is ErrorCode.RESOURCE_EXHAUSTED
        node.cancel(running)
        assert node.master.result(queued).failure is None


def test_hand_offs_are_bounded_before_anything_is_computed(tiny_llama: Path) -> None:
    """R6"""
    with Node(tiny_llama, max_exports=2) as node:
        kept = [offer(node), offer(node)]
        refused = node.start(prompt(40), stage=Stage.PREFILL)
        assert node.master.failure(refused.leg).code is ErrorCode.RESOURCE_EXHAUSTED
        assert node.master.outcome(refused.leg).started is None
        assert node.run(prompt(10, 27)).failure is None
        node.cancel(kept.pop())
        node.master.wait(2, lambda o: o.ended)
        kept.append(offer(node))
        for start in kept:
            node.cancel(start)


def test_the_handle_says_how_long_the_kv_is_kept(tiny_llama: Path) -> None:
    """R6"""
    with Node(tiny_llama, kv_lease_s=7.5) as node:
        first = offer(node)
        assert KvHandle.decode(node.master.outcome(first.leg).kv_handle).lease_s == 7.5
        node.cancel(first)


def test_a_draining_engine_finishes_what_it_has_and_refuses_the_rest(tiny_llama: Path) -> None:
    with Node(tiny_llama) as node:
        running = node.start(prompt(10, 28), dataclasses.replace(GREEDY, max_tokens=100))
        node.legs.drain()
        refused = node.start(prompt(10, 28))
        assert node.master.failure(refused.leg).code is ErrorCode.UNAVAILABLE
        assert len(node.master.result(running).token_ids[0]) == 100
        assert node.legs.is_draining
