"""Legs that are cancelled, or taken back from the hand-off, in every phase: nothing may be left of them."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcache.transfer.export import ReleaseReason
from protos.session_messages import ErrorCode, LegUpdate, Stage, Start
from tests.worker.engines.torch.engine_rig import BLOCK_SIZE, GREEDY, SEEDED, ForeignPrefill, Node, offer
from tests.worker.engines.torch.reference import prompt

LONG = dataclasses.replace(GREEDY, max_tokens=1900)


def has_started(update: LegUpdate) -> bool:
    return update.started is not None


def cancel(node: Node, sequence: int | None = None) -> Callable[[LegUpdate], None]:
    return lambda update: node.legs.cancel(node.master, update.leg, sequence)


def test_cancelled_in_the_queue(tiny_llama: Path) -> None:
    with Node(tiny_llama, max_num_seqs=1) as node:
        running = node.start(prompt(10), LONG)
        node.master.wait(running.leg, lambda o: o.started is not None)
        queued = node.start(prompt(30))
        node.cancel(queued)
        node.cancel(queued)
        node.flush()
        assert node.engine.load.queued_requests == 0
        node.cancel(running)
        node.quiesce()
        assert node.master.outcome(queued.leg).num_updates == 0


@pytest.mark.parametrize("stage", [Stage.WHOLE, Stage.PREFILL])
def test_cancelled_in_the_middle_of_the_prompt(node: Node, stage: Stage) -> None:
    node.master.once(has_started, cancel(node))
    start = node.start(prompt(100), stage=stage)
    node.master.wait(start.leg, lambda o: o.started is not None)
    node.quiesce()
    outcome = node.master.outcome(start.leg)
    assert (outcome.prefilled, outcome.token_ids, outcome.failure) == (None, {}, None)
    assert node.engine.stats.num_prefill_tokens == BLOCK_SIZE


def test_cancelled_while_it_pulls(node: Node, decode: Node) -> None:
    with ForeignPrefill(decode) as foreign:
        export, source = foreign.open()
        export.publish([0])
        start = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=source)
        decode.master.wait(start.leg, lambda o: o.started is not None)
        decode.cancel(start)
        decode.quiesce()
        assert decode.master.outcome(start.leg).failure is None


def test_cancelled_after_it_was_handed_off(node: Node) -> None:
    start = offer(node)
    node.cancel(start)
    node.quiesce()
    assert node.engine.port.sent.released[ReleaseReason.ABORTED] == 1
    assert node.master.outcome(start.leg).failure is None


def test_cancelled_while_it_decodes(node: Node) -> None:
    node.master.once(lambda u: any(d.position == 5 for d in u.deltas), cancel(node))
    start = node.start(prompt(10), LONG)
    node.master.wait(start.leg, lambda o: o.started is not None)
    node.quiesce()
    assert len(node.master.outcome(start.leg).token_ids[0]) == 6


def test_cancelled_after_its_end(node: Node) -> None:
    start = node.start(prompt(10))
    node.master.result(start)
    node.cancel(start)
    node.cancel(start, 0)
    assert node.run(prompt(10)).failure is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_sample_cancelled_in_the_middle_of_the_prompt(node: Node, llama: Node, index: int) -> None:
    whole = llama.run(prompt(100), SEEDED, sequences=(0, 1, 2)).token_ids
    node.master.once(has_started, cancel(node, index))
    start = node.start(prompt(100), SEEDED, sequences=(0, 1, 2))
    outcome = node.master.wait(start.leg, lambda o: len(o.finish_reasons) == 2)
    assert outcome.token_ids == {other: ids for other, ids in whole.items() if other != index}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_sample_cancelled_while_it_decodes(node: Node, llama: Node, index: int) -> None:
    whole = llama.run(prompt(20), SEEDED, sequences=(0, 1, 2)).token_ids
    node.master.once(lambda u: any(d.position == 3 for d in u.deltas), cancel(node, index))
    start = node.start(prompt(20), SEEDED, sequences=(0, 1, 2))
    outcome = node.master.wait(start.leg, lambda o: len(o.finish_reasons) == 2)
    assert outcome.token_ids == whole | {index: whole[index][:4]}


@pytest.mark.parametrize("index", [0, 1])
def test_one_sample_cancelled_while_the_hand_off_runs(node: Node, decode: Node, llama: Node, index: int) -> None:
    """On both workers, as a master does when a stop string completes with the first token."""
    whole = llama.run(prompt(40), SEEDED, sequences=(0, 1)).token_ids
    first = offer(node, SEEDED, (0, 1))
    node.cancel(first, index)
    decode.master.once(has_started, cancel(decode, index))
    source = node.master.outcome(first.leg).kv_handle
    second = decode.start(first.prompt_ids, SEEDED, Stage.DECODE, sequences=(0, 1), kv_handle=source)
    outcome = decode.master.wait(second.leg, lambda o: len(o.finish_reasons) == 1)
    assert outcome.token_ids[1 - index] == whole[1 - index]


def test_every_sample_cancelled_one_by_one(node: Node) -> None:
    start = offer(node, SEEDED, (0, 1))
    for index in (1, 0):
        node.cancel(start, index)
    node.quiesce()


@pytest.mark.parametrize("sequences", [(0,), (0, 1, 2)])
def test_told_to_decode_here_before_the_prompt_is_complete(node: Node, llama: Node, sequences: tuple[int, ...]) -> None:
    node.master.once(has_started, lambda u: node.legs.decode_here(node.master, u.leg))
    start = node.start(prompt(100), SEEDED, Stage.PREFILL, sequences=sequences)
    assert node.master.result(start).token_ids == llama.run(prompt(100), SEEDED, sequences=sequences).token_ids
    assert node.engine.port.sent.released[ReleaseReason.ABORTED] == 1


@pytest.mark.parametrize("sequences", [(0,), (0, 1, 2)])
def test_told_to_decode_here_when_the_prompt_is_complete(node: Node, llama: Node, sequences: tuple[int, ...]) -> None:
    start = offer(node, SEEDED, sequences)
    node.legs.decode_here(node.master, start.leg)
    assert node.master.result(start).token_ids == llama.run(prompt(40), SEEDED, sequences=sequences).token_ids


def test_told_to_decode_here_before_it_begins(tiny_llama: Path, llama: Node) -> None:
    with Node(tiny_llama, max_num_seqs=1) as node:
        running = node.start(prompt(10), LONG)
        node.master.wait(running.leg, lambda o: o.started is not None)
        start = node.start(prompt(40), stage=Stage.PREFILL)
        node.legs.decode_here(node.master, start.leg)
        node.cancel(running)
        outcome = node.master.result(start)
        assert outcome.token_ids == llama.run(prompt(40)).token_ids
        assert outcome.started is not None and outcome.started.kv_handle is None


def test_told_to_decode_here_and_then_cancelled(node: Node) -> None:
    start = offer(node, LONG)
    node.legs.decode_here(node.master, start.leg)
    node.cancel(start)
    node.quiesce()


def test_told_to_decode_here_while_a_decode_worker_pulls(node: Node, decode: Node, llama: Node) -> None:
    """The decode worker learns that it is not wanted; it tells no token."""

    def take_back(update: LegUpdate) -> None:
        assert update.started is not None
        second = decode.start(prompt(100), stage=Stage.DECODE, kv_handle=update.started.kv_handle)
        decode.master.wait(second.leg, lambda o: o.started is not None)
        seconds.append(second)
        node.legs.decode_here(node.master, update.leg)

    seconds: list[Start] = []
    node.master.once(has_started, take_back)
    first = node.start(prompt(100), stage=Stage.PREFILL)
    assert node.master.result(first).token_ids == llama.run(prompt(100)).token_ids
    failure = decode.master.failure(seconds[0].leg)
    assert failure.code is ErrorCode.TRANSFER_FAILED and "decodes this request itself" in failure.message
    assert decode.master.outcome(seconds[0].leg).token_ids == {}


def test_told_to_decode_here_while_its_blocks_are_read(node: Node, llama: Node) -> None:
    """It goes on when the reader is done with them, and until then nobody else gets them."""

    def read_and_take_back(update: LegUpdate) -> None:
        (group,) = node.engine._groups._groups.values()  # only there is the export to be had
        assert group.export is not None
        reading.enter_context(group.export.pinned(0, 1))
        node.legs.decode_here(node.master, update.leg)

    with contextlib.ExitStack() as reading:
        node.master.once(has_started, read_and_take_back)
        start = node.start(prompt(100), SEEDED, Stage.PREFILL, sequences=(0, 1))
        node.master.wait(start.leg, lambda o: len(o.token_ids) == 2)
        node.flush()
        assert (node.engine.load.running_sequences, node.engine.load.held_blocks) == (0, 7)
    assert node.master.result(start).token_ids == llama.run(prompt(100), SEEDED, sequences=(0, 1)).token_ids


def test_told_to_decode_here_what_is_gone(node: Node, decode: Node) -> None:
    first = offer(node)
    second = decode.start(first.prompt_ids, stage=Stage.DECODE, kv_handle=node.master.outcome(first.leg).kv_handle)
    decode.master.result(second)
    node.quiesce()
    assert node.master.outcome(first.leg).failure is None
    node.legs.decode_here(node.master, first.leg)
    assert node.master.failure(first.leg).code is ErrorCode.TRANSFER_FAILED
