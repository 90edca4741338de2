"""Steps of one shape: the same bits for a token whatever else is computed with it.

How a matrix product rounds depends on its shape, so a token's logits depend, in their last bits, on how many tokens
its step has. Here a step is cut into blocks of a fixed number of rows, the last one padded, and each is a forward
pass of its own; attention is computed row by row. What is left is the row's place within its block: whether that
matters depends on the machine and the model, so it is tried, and a block of one row is always left.
"""

from collections.abc import Iterator, Sequence

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.paged_forward import PagedForward, Part

SIZES = (16, 8, 4, 2)  # rows in a block, the first that works; the more, the faster prompts are
_BLOCK_SIZE = 16
_NUM_TRIED = 24  # tokens
_NUM_TRIALS = 8


class RowBlocks:
    """Computes parts as PagedForward does, in blocks of `num_rows` rows."""

    def __init__(self, loaded: LoadedModel, memory: PoolMemory, num_rows: int) -> None:
        self._forward = PagedForward(loaded.model, memory, num_rows=num_rows)
        self._num_rows = num_rows

    def run(self, parts: Sequence[Part]) -> torch.Tensor:
        """-> float32 [tokens wanted, vocabulary], in the parts' order."""
        return torch.cat([self._forward.run(block) for block in split_rows(parts, self._num_rows)])


def split_rows(parts: Sequence[Part], num_rows: int) -> Iterator[list[Part]]:
    """The parts cut into blocks of `num_rows` tokens, in their order; the last may have fewer."""
    block: list[Part] = []
    room = num_rows
    for part in parts:
        start = 0
        while start < len(part.token_ids):
            stop = min(start + room, len(part.token_ids))
            block.append(part.between(start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield block
                block, room = [], num_rows
    if block:
        yield block


def find_num_rows(loaded: LoadedModel) -> int:
    """The largest block in which a row's place and its neighbours change no bit of its logits."""
    return next((num_rows for num_rows in SIZES if _is_invariant(loaded, num_rows)), 1)


def _is_invariant(loaded: LoadedModel, num_rows: int) -> bool:
    """Whether a few tokens have the same logits at every place of a block, behind whatever others."""
    num_blocks = -(-max(_NUM_TRIED, num_rows) // _BLOCK_SIZE)
    memory = PoolMemory(loaded.layout(_BLOCK_SIZE), 2 * num_blocks, loaded.model.device)
    blocks = RowBlocks(loaded, memory, num_rows)
    part = Part(_random_ids(loaded, _NUM_TRIED, 0), 0, range(num_blocks), range(_NUM_TRIED), first_position=0)
    expected = blocks.run([part])
    for trial in range(_NUM_TRIALS):
        others = _random_ids(loaded, 1 + 7 * trial % num_rows, seed=trial + 1)
        before = Part(others, 0, range(num_blocks, 2 * num_blocks), range(0), first_position=0)
        if not torch.equal(blocks.run([before, part]), expected):
            return False
    return True


def _random_ids(loaded: LoadedModel, num_tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(loaded.vocab_size, (num_tokens,), generator=generator).tolist()
    return ids
