"""Runs the model over one step's chunks, flattened into one row of tokens."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.attention import PagedStep, SequenceSpan
from worker.engines.torch.loader import LoadedModel
from worker.engines.torch.scheduler import Chunk


@dataclass(frozen=True, slots=True)
class StepLogits:
    """`last[i]` [vocabulary] predicts the next token of the i-th chunk that is its sequence's last.

    `prompt[i]` [positions, vocabulary] predicts, for chunk i, the prompt tokens after each of its tokens; only where
    the run asked for them.
    """

    last: torch.Tensor
    prompt: dict[int, torch.Tensor]


class ModelRunner:
    def __init__(self, loaded: LoadedModel, memory: PoolMemory) -> None:
        self._model = loaded.model
        self._memory = memory
        self._block_size = memory.layout.block_size

    @torch.inference_mode()
    def step(self, chunks: Items[Chunk]) -> StepLogits:
        """Compute the chunks: their KV goes into their sequences' blocks. Leaves the sequences unchanged."""
        token_ids: list[int] = []
        positions: list[int] = []
        slot_blocks: list[int] = []
        spans: list[SequenceSpan] = []
        for chunk in chunks:
            sequence = chunk.sequence
            first, stop = sequence.num_computed, sequence.num_computed + chunk.num_tokens
            num_blocks = -(-stop // self._block_size)
            blocks = self._index(sequence.blocks[:num_blocks])
            spans.append(SequenceSpan(len(token_ids), chunk.num_tokens, stop, blocks))
            token_ids += sequence.token_ids[first:stop]
            positions += range(first, stop)
            slot_blocks += (sequence.blocks[position // self._block_size] for position in range(first, stop))
        position_ids = self._index(positions)
        paged = PagedStep(self._memory, self._index(slot_blocks), position_ids % self._block_size, tuple(spans))
        kept = [_kept_positions(chunk, span.start) for chunk, span in zip(chunks, spans, strict=True)]
        logits = (
            self._model(
                input_ids=self._index(token_ids).unsqueeze(0),
                position_ids=position_ids.unsqueeze(0),
                use_cache=False,
                logits_to_keep=self._index([row for rows in kept for row in rows]),
                paged=paged,
            )
            .logits[0]
            .float()
        )
        return _split(logits, chunks, [len(rows) for rows in kept])

    def copy_block(self, source: int, destination: int) -> None:
        self._memory.copy_block(source, destination)

    def _index(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._memory.device)


def _kept_positions(chunk: Chunk, start: int) -> range:
    """Rows of the flattened step whose logits are needed."""
    stop = start + chunk.num_tokens
    if _wants_prompt(chunk):
        return range(start, stop)
    return range(stop - 1, stop) if chunk.is_last else range(0)


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
