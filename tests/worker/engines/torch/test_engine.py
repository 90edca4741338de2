"""The engine against plain transformers, and two engines against one."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protos.sampling_messages import FinishReason
from protos.session_messages import Stage
from tests.checkpoints import Family
from tests.worker.engines.torch.engine_rig import (
    BLOCK_SIZE,
    GREEDY,
    SEEDED,
    Master,
    Node,
    Outcome,
    hand_off,
)
from tests.worker.engines.torch.reference import Reference, prompt

LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 100, 150)
CHUNKS = (16, 64, 512)
TRANSPORTS = ("vm_read", "tcp")

GetCheckpoint = Callable[[Family], Path]
GetReference = Callable[[Path], Reference]


def num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


@pytest.fixture
def pair(tiny_llama: Path) -> Iterator[tuple[Node, Node]]:
    """A prefill and a decode engine; the prefill engine cuts prompts in chunks of 24."""
    with Node(tiny_llama, max_tokens_per_step=24) as prefill, Node(tiny_llama) as decode:
        yield prefill, decode


@pytest.mark.parametrize("family", Family)
def test_greedy_ids_are_those_of_transformers(
    family: Family, checkpoint: GetCheckpoint, reference: GetReference
) -> None:
    folder = checkpoint(family)
    with Node(folder, max_tokens_per_step=40) as node:
        for length in LENGTHS:
            outcome = node.run(prompt(length))
            assert outcome.token_ids[0] == reference(folder).greedy(prompt(length), 20), length
            assert outcome.finish_reasons[0] is FinishReason.LENGTH
            assert outcome.started is not None and outcome.started.cached_tokens == 0
            assert outcome.prefilled is not None and outcome.prefilled.computed_tokens == length


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("family", Family)
def test_a_hand_off_gives_what_one_worker_gives(
    family: Family, transport: str, checkpoint: GetCheckpoint, reference: GetReference
) -> None:
    folder = checkpoint(family)
    with (
        Node(folder, max_tokens_per_step=40) as prefill,
        Node(folder, transports=(transport,)) as decode,
        Node(folder) as whole,
    ):
        num_sent = 0
        for length in LENGTHS:
            first, second = hand_off(prefill, decode, prompt(length))
            assert second.token_ids[0] == reference(folder).greedy(prompt(length), 20), length
            assert first.token_ids[0] == second.token_ids[0][:1]
            assert second.transferred is not None and second.transferred.transport == transport
            assert second.transferred.blocks_sent == num_blocks(length)
            num_sent += num_blocks(length)
            seeded = hand_off(prefill, decode, prompt(length, 1), SEEDED, sequences=(0, 1, 2))[1]
            assert seeded.token_ids == whole.run(prompt(length, 1), SEEDED, sequences=(0, 1, 2)).token_ids, length
            assert len({tuple(ids) for ids in seeded.token_ids.values()}) == 3
            num_sent += num_blocks(length)
        prefill.quiesce()
        assert prefill.engine.load.transfer.blocks_sent == num_sent
        assert decode.engine.load.transfer.blocks_received == num_sent
        assert decode.engine.load.transfer.bytes_received == num_sent * decode.layout.block_bytes


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_do_not_change_the_ids(chunk: int, tiny_llama: Path, llama: Node) -> None:
    with Node(tiny_llama, max_tokens_per_step=chunk) as node:
        for length in (64, 150):
            for sampling in (GREEDY, SEEDED):
                assert (
                    node.run(prompt(length, 2), sampling).token_ids == llama.run(prompt(length, 2), sampling).token_ids
                )


def test_a_ceiling_on_steps_does_not_change_the_ids(tiny_llama: Path, reference: GetReference) -> None:
    with Node(tiny_llama, max_step_s=1e-6) as node:
        starts = [node.start(prompt(length, 9)) for length in (5, 150, 40)]
        for start in starts:
            assert node.master.result(start).token_ids[0] == reference(tiny_llama).greedy(start.prompt_ids, 20)


def test_a_prompt_is_computed_uncut_without_chunked_prefill(tiny_llama: Path, reference: GetReference) -> None:
    with Node(tiny_llama, max_tokens_per_step=32, enable_chunked_prefill=False) as node:
        starts = [node.start(prompt(length)) for length in (100, 20, 20, 100)]
        for start in starts:
            expected = reference(tiny_llama).greedy(start.prompt_ids, 20)
            assert node.master.result(start).token_ids[0] == expected


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_a_warm_prefix_cache_does_not_change_the_ids(
    length: int, enable_prefix_cache: bool, tiny_llama: Path, reference: GetReference
) -> None:
    with Node(tiny_llama, enable_prefix_cache=enable_prefix_cache) as node:
        for is_warm in (False, True):
            outcome = node.run(prompt(length, 3))
            assert outcome.token_ids[0] == reference(tiny_llama).greedy(prompt(length, 3), 20)
            # the last token is computed for its logits, and with it its block
            reusable = (length - 1) // BLOCK_SIZE * BLOCK_SIZE if is_warm and enable_prefix_cache else 0
            assert outcome.started is not None and outcome.started.cached_tokens == reusable
            assert outcome.prefilled is not None and outcome.prefilled.computed_tokens == length - reusable


def test_a_prefix_is_shared_with_a_longer_prompt(llama: Node, tiny_llama: Path, reference: GetReference) -> None:
    begun = prompt(90, 4)
    llama.run(begun)
    longer = (*begun, *prompt(40, 5))
    outcome = llama.run(longer)
    assert outcome.token_ids[0] == reference(tiny_llama).greedy(longer, 20)
    assert outcome.started is not None and outcome.started.cached_tokens == 80


def test_sixteen_at_once(tiny_llama: Path, reference: GetReference) -> None:
    with Node(tiny_llama, max_tokens_per_step=48) as node:
        starts = [node.start(prompt(5 + 7 * index, 6)) for index in range(16)]
        for start in starts:
            outcome = node.master.result(start)
            assert outcome.token_ids[0] == reference(tiny_llama).greedy(start.prompt_ids, 20)


def test_sixteen_hand_offs_at_once(pair: tuple[Node, Node], tiny_llama: Path, reference: GetReference) -> None:
    prefill, decode = pair
    firsts = [prefill.start(prompt(5 + 7 * index, 6), stage=Stage.PREFILL) for index in range(16)]
    seconds = []
    for first in firsts:
        source = prefill.master.wait(first.leg, lambda o: o.started is not None).kv_handle
        seconds.append(decode.start(first.prompt_ids, stage=Stage.DECODE, kv_handle=source))
    for second in seconds:
        outcome = decode.master.result(second)
        assert outcome.token_ids[0] == reference(tiny_llama).greedy(second.prompt_ids, 20)


def test_sequences_share_one_prefill(llama: Node) -> None:
    ids = prompt(70, 7)
    before = llama.engine.stats.num_prefill_tokens
    outcome = llama.run(ids, SEEDED, sequences=(0, 1, 2))
    assert llama.engine.stats.num_prefill_tokens - before == len(ids)
    assert outcome.prefilled is not None and outcome.prefilled.computed_tokens == len(ids)
    for index in range(3):
        assert outcome.token_ids[index] == llama.run(ids, SEEDED, sequences=(index,)).token_ids[index]
    assert outcome.finish_reasons == dict.fromkeys(range(3), FinishReason.LENGTH)


def test_a_resumed_leg_continues_where_the_first_one_stood(pair: tuple[Node, Node], llama: Node) -> None:
    ids = prompt(50, 8)
    for sampling in (GREEDY, SEEDED):
        complete = llama.run(ids, sampling, sequences=(2,)).token_ids[2]
        for num_known in (1, 7, 19):
            known = complete[:num_known]
            resumed = llama.run(ids, sampling, output_ids=known, sequences=(2,))
            assert (resumed.token_ids[2], resumed.first_position) == (complete[num_known:], num_known)
            moved = hand_off(*pair, ids, sampling, output_ids=known, sequences=(2,)) if num_known < 19 else None
            assert moved is None or moved[1].token_ids[2] == complete[num_known:]


def test_what_the_decode_worker_has_is_not_sent_again(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    ids = prompt(100, 9)
    cold = hand_off(prefill, decode, ids)[1]
    warm = hand_off(prefill, decode, ids)[1]
    assert warm.token_ids == cold.token_ids
    assert cold.transferred is not None and warm.transferred is not None
    assert (cold.transferred.blocks_sent, cold.transferred.blocks_skipped) == (7, 0)
    assert (warm.transferred.blocks_sent, warm.transferred.blocks_skipped) == (1, 6)
    aligned = prompt(96, 9)
    hand_off(prefill, decode, aligned)
    fully_known = hand_off(prefill, decode, aligned)[1].transferred
    assert fully_known is not None and (fully_known.blocks_sent, fully_known.num_bytes) == (0, 0)


def test_pulled_blocks_serve_later_prompts_of_the_decode_worker(pair: tuple[Node, Node], llama: Node) -> None:
    prefill, decode = pair
    hand_off(prefill, decode, prompt(100, 10))
    outcome = decode.run(prompt(100, 10))
    assert outcome.started is not None and outcome.started.cached_tokens == 96
    assert outcome.token_ids == llama.run(prompt(100, 10)).token_ids


def test_a_salt_keeps_caches_apart(llama: Node) -> None:
    ids = prompt(64, 11)
    plain = llama.run(ids)
    salted = llama.run(ids, cache_salt="a")
    again = llama.run(ids, cache_salt="a")
    other = llama.run(ids, cache_salt="b")
    assert [o.started.cached_tokens for o in (plain, salted, again, other) if o.started] == [0, 0, 48, 0]
    assert plain.token_ids == salted.token_ids == again.token_ids == other.token_ids


def logprobs_of(outcome: Outcome, index: int = 0) -> list[tuple[int | None, int | None, tuple[int, ...]]]:
    """Ids and ranks; the values are compared with a tolerance."""
    return [(entry.token_id, entry.rank, tuple(i for i, _ in entry.top)) for entry in outcome.logprobs[index]]


def test_logprobs_are_the_same_through_a_hand_off_and_those_of_transformers(
    pair: tuple[Node, Node], llama: Node, tiny_llama: Path, reference: GetReference
) -> None:
    ids = prompt(40, 12)
    sampling = dataclasses.replace(SEEDED, logprobs=3, max_tokens=8)
    whole = llama.run(ids, sampling, sequences=(0, 1))
    first, second = hand_off(*pair, ids, sampling, sequences=(0, 1))
    for index in (0, 1):
        output_ids = second.token_ids[index]
        assert logprobs_of(second, index) == logprobs_of(whole, index)
        assert first.logprobs[index] == second.logprobs[index][:1]
        expected = reference(tiny_llama).logprobs((*ids, *output_ids))[len(ids) - 1 : -1]
        for row, token_id, entry in zip(expected, output_ids, second.logprobs[index], strict=True):
            assert entry.token_id == token_id and entry.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            assert entry.rank == 1 + int((row > row[token_id]).sum())
            assert [i for i, _ in entry.top] == row.topk(3).indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("length", [1, 16, 17, 90])
def test_prompt_logprobs_are_complete_whatever_is_cached(
    length: int, tiny_llama: Path, reference: GetReference
) -> None:
    ids = prompt(length, 13)
    sampling = dataclasses.replace(GREEDY, prompt_logprobs=2, max_tokens=3)
    expected = reference(tiny_llama).logprobs(ids)
    with Node(tiny_llama, max_tokens_per_step=24) as node, Node(tiny_llama) as decode:
        node.run(ids)
        for outcome in (node.run(ids, sampling), hand_off(node, decode, ids, sampling)[0]):
            assert len(outcome.prompt_logprobs) == length
            assert outcome.prompt_logprobs[0].token_id is None
            for position, entry in enumerate(outcome.prompt_logprobs[1:], start=1):
                row = expected[position - 1]
                assert entry.token_id == ids[position]
                assert entry.logprob == pytest.approx(float(row[ids[position]]), abs=1e-4)
                assert [i for i, _ in entry.top] == row.topk(2).indices.tolist()


def test_the_first_token_ends_the_request_without_a_transfer(pair: tuple[Node, Node], reference: GetReference) -> None:
    prefill, decode = pair
    ids = prompt(60, 18)
    (end,) = prefill.run(ids, dataclasses.replace(GREEDY, max_tokens=1)).token_ids[0]
    sampling = dataclasses.replace(GREEDY, stop_token_ids=(end,))
    # a salt, so that the prompt takes several chunks again and the decode worker is there before they are computed
    first = prefill.start(ids, sampling, Stage.PREFILL, cache_salt="again")
    source = prefill.master.wait(first.leg, lambda o: o.started is not None).kv_handle
    second = decode.start(ids, sampling, Stage.DECODE, cache_salt="again", kv_handle=source)
    outcome = prefill.master.result(first)
    assert (outcome.token_ids, outcome.finish_reasons) == ({0: [end]}, {0: FinishReason.STOP})
    decode.quiesce()
    silent = decode.master.outcome(second.leg)
    assert (silent.token_ids, silent.failure, silent.transferred) == ({}, None, None)


def test_one_sequence_ends_with_its_first_token_the_others_move_on(pair: tuple[Node, Node], llama: Node) -> None:
    ids = prompt(33, 19)
    firsts = llama.run(ids, dataclasses.replace(SEEDED, max_tokens=1), sequences=(0, 1, 2)).token_ids
    sampling = dataclasses.replace(SEEDED, stop_token_ids=(firsts[0][0],))
    whole = llama.run(ids, sampling, sequences=(0, 1, 2))
    assert whole.finish_reasons[0] is FinishReason.STOP and len(whole.token_ids[0]) == 1
    moved = hand_off(*pair, ids, sampling, sequences=(0, 1, 2))[1]
    assert (moved.token_ids, moved.finish_reasons) == (whole.token_ids, whole.finish_reasons)


def test_a_sequence_that_ended_leaves_its_blocks_to_others(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    ids = prompt(40, 34)
    firsts = prefill.run(ids, dataclasses.replace(SEEDED, max_tokens=1), sequences=(0, 1)).token_ids
    sampling = dataclasses.replace(SEEDED, stop_token_ids=(firsts[0][0],))
    held: list[int] = []
    decode.master.on_update(lambda update: held.extend([decode.pool.num_held] * len(update.deltas)))
    outcome = hand_off(prefill, decode, ids, sampling, sequences=(0, 1))[1]
    assert [len(outcome.token_ids[index]) for index in (0, 1)] == [1, 20]
    # two full blocks and a partial one, then a fourth
    assert held[2:8] == [3] * 6 and max(held) == 4


def test_one_token_opens_no_export(pair: tuple[Node, Node]) -> None:
    prefill, _ = pair
    start = prefill.start(prompt(40, 20), dataclasses.replace(GREEDY, max_tokens=1), Stage.PREFILL)
    outcome = prefill.master.result(start)
    assert outcome.started is not None and outcome.started.kv_handle is None
    assert outcome.finish_reasons == {0: FinishReason.LENGTH}
    prefill.quiesce()
    assert sum(prefill.engine.port.sent.released.values()) == 0


def test_a_stop_token_of_a_block_boundary_is_the_last(llama: Node) -> None:
    ids = prompt(20, 21)
    complete = llama.run(ids).token_ids[0]
    end = complete[12]
    outcome = llama.run(ids, dataclasses.replace(GREEDY, stop_token_ids=(end,)))
    expected = complete[: complete.index(end) + 1]
    assert (outcome.token_ids[0], outcome.finish_reasons[0]) == (expected, FinishReason.STOP)


def test_load_says_what_is_going_on(tiny_llama: Path) -> None:
    with Node(tiny_llama, max_num_seqs=1) as node:
        first = node.start(prompt(40, 25), stage=Stage.PREFILL)
        node.master.wait(first.leg, lambda o: bool(o.token_ids))
        node.flush()
        load = node.engine.load
        assert (load.exports, load.held_blocks, load.available_blocks) == (1, 3, 197)
        assert (load.queued_requests, load.running_sequences, load.queued_prefill_tokens) == (0, 0, 0)
        assert load.steps > 0 and load.prefill is not None
        node.cancel(first)
        assert node.engine.stats.num_prefill_tokens == 40


def test_legs_of_two_masters_with_one_number_are_two(llama: Node) -> None:
    other = Master()
    llama.legs.attach(other)
    start = llama.start(prompt(30, 29))
    theirs = dataclasses.replace(start, prompt_ids=prompt(31, 29))
    llama.legs.begin(other, theirs)
    mine, its = llama.master.result(start), other.result(theirs)
    assert mine.token_ids != its.token_ids
    assert its.token_ids == llama.run(prompt(31, 29)).token_ids
    llama.legs.detach(other)
