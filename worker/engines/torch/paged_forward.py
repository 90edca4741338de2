"""One forward pass of the model over parts of several sequences, flattened into one row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.attention import PagedStep, SequenceSpan
from worker.engines.torch.paged_network import PagedNetwork


@dataclass(frozen=True, slots=True)
class Part:
    """Further tokens of one sequence, after `num_before` whose KV is in its `blocks`; so will theirs be.

    Logits are wanted of the tokens in `wanted`, counted from the part's first.
    """

    token_ids: Sequence[int]
    num_before: int
    blocks: Sequence[int]
    wanted: range
    first_position: int  # what the model is told; `num_before` but for checks of far positions

    def between(self, start: int, stop: int) -> Self:
        """The tokens from `start` up to `stop` as a part of their own."""
        wanted = range(max(self.wanted.start, start) - start, max(min(self.wanted.stop, stop) - start, 0))
        return replace(
            self,
            token_ids=self.token_ids[start:stop],
            num_before=self.num_before + start,
            wanted=wanted,
            first_position=self.first_position + start,
        )


class PagedForward:
    """With `num_rows` every pass has that many rows and attends row by row, so that no shape depends on the parts."""

    def __init__(self, network: PagedNetwork, memory: PoolMemory, num_rows: int | None = None) -> None:
        self._network = network
        self._memory = memory
        self._num_rows = num_rows
        self._block_size = memory.layout.block_size

    @torch.inference_mode()
    def run(self, parts: Sequence[Part]) -> torch.Tensor:
        """-> float32 [tokens wanted, vocabulary], in the parts' order; `num_rows` is the most tokens it takes."""
        token_ids: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        spans: list[SequenceSpan] = []
        for part in parts:
            start, stop = len(token_ids), part.num_before + len(part.token_ids)
            spans.append(SequenceSpan(start, len(part.token_ids), stop, part.blocks[: -(-stop // self._block_size)]))
            kept += [start + row for row in part.wanted]
            token_ids += part.token_ids
            positions += range(part.first_position, part.first_position + len(part.token_ids))
        paged = PagedStep(self._memory, tuple(spans), is_row_by_row=self._num_rows is not None)
        num_padding = max(self._num_rows or 0, len(token_ids)) - len(token_ids)
        token_ids += token_ids[-1:] * num_padding
        positions += positions[-1:] * num_padding
        if self._num_rows is None:
            return self._logits(token_ids, positions, kept, paged)
        return self._logits(token_ids, positions, range(self._num_rows) if kept else [], paged)[kept]

    def _logits(
        self, token_ids: Sequence[int], positions: Sequence[int], kept: Sequence[int], paged: PagedStep
    ) -> torch.Tensor:
        return self._network.logits(self._index(token_ids), self._index(positions), self._index(kept), paged)

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._memory.device)
