"""Where the rows of one step find and leave their KV, as arrays that compiled kernels read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.layout import KvLayout
from worker.engines.torch.attention import SequenceSpan

TILE = 16  # tokens of a prompt whose keys and values are read once


@dataclass(frozen=True, slots=True)
class StepTables:
    """`tiles` int32 [num_tiles, 4]: first row, rows, position of the first, where in `blocks` its sequence's begin.

    `blocks` int32: the spans' block tables, one after the other. `slots` int64 [tokens]: the element of a layer's pages
    at which a token's KV begins.
    """

    tiles: NDArray[np.int32]
    blocks: NDArray[np.int32]
    slots: NDArray[np.int64]


def step_tables(spans: Sequence[SequenceSpan], layout: KvLayout, max_tile: int) -> StepTables:
    """Spans follow each other from row 0; a tile has `max_tile` tokens at most."""
    size = layout.block_size
    num_tokens = spans[-1].start + spans[-1].num_tokens
    tables = [np.array(span.blocks, dtype=np.int32) for span in spans]
    slots = np.empty(num_tokens, dtype=np.int64)
    tiles: list[tuple[int, int, int, int]] = []
    begin = 0
    for span, table in zip(spans, tables, strict=True):
        first = span.context_len - span.num_tokens
        places = np.arange(first, span.context_len)
        where = table[places // size] * np.int64(layout.block_elements)
        slots[span.start : span.start + span.num_tokens] = where + places % size * layout.token_elements
        tiles += [
            (span.start + offset, min(max_tile, span.num_tokens - offset), first + offset, begin)
            for offset in range(0, span.num_tokens, max_tile)
        ]
        begin += len(table)
    return StepTables(np.array(tiles, dtype=np.int32), np.concatenate(tables), slots)
