"""Computes one step's chunks."""

import logging
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.paged_forward import PagedForward, Part
from worker.engines.torch.row_blocks import RowBlocks, find_num_rows, is_invariant_at_any_size
from worker.engines.torch.scheduler import Chunk

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLogits:
    """`last[i]` [vocabulary] predicts the next token of the i-th chunk that is its sequence's last.

    `prompt[i]` [positions, vocabulary] predicts, for chunk i, the prompt tokens after each of its tokens; only where
    the run asked for them.
    """

    last: torch.Tensor
    prompt: dict[int, torch.Tensor]


class StepRunner(Protocol):
    """What the engine needs of a model."""

    def step(self, chunks: Items[Chunk]) -> StepLogits:
        """Compute the chunks: their KV goes into their sequences' blocks. Leaves the sequences unchanged."""

    def copy_block(self, source: int, destination: int) -> None: ...


class ModelRunner:
    def __init__(self, loaded: LoadedModel, memory: PoolMemory) -> None:
        self._forward = _forward(loaded, memory)
        self._memory = memory

    def step(self, chunks: Items[Chunk]) -> StepLogits:
        parts = [_part(chunk) for chunk in chunks]
        return _split(self._forward.run(parts), chunks, [len(part.wanted) for part in parts])

    def copy_block(self, source: int, destination: int) -> None:
        self._memory.copy_block(source, destination)


def _forward(loaded: LoadedModel, memory: PoolMemory) -> PagedForward | RowBlocks:
    if not loaded.served.is_batch_invariant or is_invariant_at_any_size(loaded):
        return PagedForward(loaded.network, memory)
    num_rows = find_num_rows(loaded)
    logger.info("batch-invariant: every forward pass has %d rows", num_rows)
    return RowBlocks(loaded, memory, num_rows)


def _part(chunk: Chunk) -> Part:
    sequence = chunk.sequence
    first, stop = sequence.num_computed, sequence.num_computed + chunk.num_tokens
    return Part(sequence.token_ids[first:stop], first, sequence.blocks, _wanted(chunk), first_position=first)


def _wanted(chunk: Chunk) -> range:
    if _wants_prompt(chunk):
        return range(chunk.num_tokens)
    return range(chunk.num_tokens - 1, chunk.num_tokens) if chunk.is_last else range(0)


def _wants_prompt(chunk: Chunk) -> bool:
    group = chunk.sequence.group
    return group.wants_prompt_logprobs and chunk.sequence.num_computed < len(group.run.prompt_ids)


def _split(logits: torch.Tensor, chunks: Items[Chunk], num_rows: list[int]) -> StepLogits:
    last: list[int] = []
    prompt: dict[int, torch.Tensor] = {}
    row = 0
    for index, chunk in enumerate(chunks):
        if _wants_prompt(chunk):
            num_targets = len(chunk.sequence.group.run.prompt_ids) - 1 - chunk.sequence.num_computed
            prompt[index] = logits[row : row + min(chunk.num_tokens, num_targets)]  # none for a prompt of one token
        row += num_rows[index]
        if chunk.is_last:
            last.append(row - 1)
    return StepLogits(logits[last], prompt)
