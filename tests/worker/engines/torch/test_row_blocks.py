"""With --batch_invariant a token's logits have the same bits whatever is computed with it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvcache.pool_memory import PoolMemory
from tests.architectures import EQUAL, Architecture, make_model
from tests.checkpoints import Family
from tests.worker.engines.torch.engine_rig import GREEDY, SEEDED, Node, hand_off
from tests.worker.engines.torch.reference import prompt
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.loader import load_model
from worker.engines.torch.paged_forward import Part
from worker.engines.torch.row_blocks import RowBlocks, find_num_rows, split_rows

BLOCK_SIZE = 4
LANE = 16  # blocks of one sequence
DENSE, EXPERTS = (next(a for a in EQUAL if a.name == name) for name in ("gemma2 sliding", "mixtral"))


def part_of(token_ids: tuple[int, ...], lane: int) -> Part:
    """All of a sequence."""
    return Part(token_ids, 0, range(lane * LANE, (lane + 1) * LANE), range(len(token_ids)), first_position=0)


class Random:
    """Computes sequences in random chunks, beside each other, and gathers their logits."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        memory = PoolMemory(loaded.layout(BLOCK_SIZE), 4 * LANE)
        self._blocks = RowBlocks(loaded, memory, find_num_rows(loaded))
        self._dice = random.Random(seed)

    def logits(self, sequences: list[tuple[int, ...]]) -> list[torch.Tensor]:
        wholes = [part_of(token_ids, lane) for lane, token_ids in enumerate(sequences)]
        done = [0] * len(wholes)
        rows: list[list[torch.Tensor]] = [[] for _ in wholes]
        while unfinished := [lane for lane, whole in enumerate(wholes) if done[lane] < len(whole.token_ids)]:
            chosen = self._dice.sample(unfinished, self._dice.randint(1, len(unfinished)))
            sizes = [self._dice.choice((1, 3, 16, 40)) for _ in chosen]
            stops = [min(done[i] + size, len(wholes[i].token_ids)) for i, size in zip(chosen, sizes, strict=True)]
            step = [wholes[lane].between(done[lane], stop) for lane, stop in zip(chosen, stops, strict=True)]
            logits = torch.split(self._blocks.run(step), [len(part.token_ids) for part in step])
            for lane, stop, computed in zip(chosen, stops, logits, strict=True):
                rows[lane].append(computed)
                done[lane] = stop
        return [torch.cat(parts) for parts in rows]


@pytest.mark.parametrize("architecture", [DENSE, EXPERTS], ids=lambda architecture: architecture.name)
def test_logits_are_the_same_bits_in_every_batch_and_chunking(architecture: Architecture, tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, architecture), torch.device("cpu"), "auto")
    sequences = [tuple(token_id % 128 for token_id in prompt(length)) for length in (50, 21, 33, 8)]
    expected = [Random(loaded, 0).logits([token_ids])[0] for token_ids in sequences]
    for seed in range(1, 6):
        for logits, alone in zip(Random(loaded, seed).logits(sequences), expected, strict=True):
            assert torch.equal(logits, alone)


def test_every_engine_gives_one_answer_to_the_last_bit(checkpoint: Callable[[Family], Path]) -> None:
    """Log-probabilities and all: alone, together, in other chunks, from the prefix cache, handed off."""
    folder = checkpoint(Family.QWEN3)
    sampled = replace(SEEDED, logprobs=5, prompt_logprobs=2)
    greedy = replace(GREEDY, logprobs=5)
    prompts = [prompt(length, 40) for length in (70, 33, 5, 18)]
    with Node(folder, batch_invariant=True) as node:
        alone = [node.run(ids, params) for ids in prompts for params in (sampled, greedy)]
    with (
        Node(folder, batch_invariant=True, max_tokens_per_step=23) as busy,
        Node(folder, batch_invariant=True, max_tokens_per_step=50) as decode,
    ):
        for _ in range(2):  # the second time from the prefix cache
            starts = [busy.start(ids, params) for ids in prompts for params in (sampled, greedy)]
            for start, expected in zip(starts, alone, strict=True):
                outcome = busy.master.result(start)
                assert (outcome.token_ids, outcome.logprobs) == (expected.token_ids, expected.logprobs)
                assert outcome.prompt_logprobs == expected.prompt_logprobs
        for ids, expected in zip(prompts, alone[1::2], strict=True):
            handed = hand_off(busy, decode, ids, greedy)[1]
            assert (handed.token_ids, handed.logprobs) == (expected.token_ids, expected.logprobs)


def test_a_worker_that_promises_it_shares_no_kv_with_one_that_does_not(tiny_llama: Path) -> None:
    device = torch.device("cpu")
    plain = load_model(tiny_llama, device, "auto")
    invariant = load_model(tiny_llama, device, "auto", is_batch_invariant=True)
    assert plain.layout(16).fingerprint() != invariant.layout(16).fingerprint()


def test_experts_get_blocks_of_few_rows_where_their_batches_would_vary(tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, EXPERTS), torch.device("cpu"), "auto")
    assert find_num_rows(loaded) < 16


def test_parts_are_cut_into_blocks_in_their_order() -> None:
    parts = [part_of((1, 2, 3, 4, 5), 0), replace(part_of((6, 7, 8, 9), 1), wanted=range(3, 4))]
    blocks = list(split_rows(parts, 4))
    ids = [[tuple(part.token_ids) for part in block] for block in blocks]
    assert ids == [[(1, 2, 3, 4)], [(5,), (6, 7, 8)], [(9,)]]
    assert [[part.num_before for part in block] for block in blocks] == [[0], [4, 0], [3]]
    assert [[len(part.wanted) for part in block] for block in blocks] == [[4], [1, 0], [1]]
