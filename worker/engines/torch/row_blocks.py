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
        self._forward = PagedForward(loaded.network, memory, num_rows=num_rows)
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


def is_invariant_at_any_size(loaded: LoadedModel) -> bool:
    """Whether a token's logits have the same bits in whole steps, of whatever shape, so that nothing need be cut."""
    memory = _memory(loaded, 1 + 7 * _NUM_TRIALS)
    forward = PagedForward(loaded.network, memory)
    whole = _whole(loaded)
    expected = forward.run([whole])
    for num_others in (0, 1, *range(1, 1 + 7 * _NUM_TRIALS, 7)):
        others = [_others(loaded, num_others)] if num_others else []
        if not torch.equal(forward.run([*others, whole]), expected):
            return False
        forward.run([whole.between(0, _NUM_TRIED - 1)])  # and the last token by itself, as decodes come
        if not torch.equal(forward.run([*others, whole.between(_NUM_TRIED - 1, _NUM_TRIED)]), expected[-1:]):
            return False
    return True


def _is_invariant(loaded: LoadedModel, num_rows: int) -> bool:
    """Whether a few tokens have the same logits at every place of a block, behind whatever others."""
    blocks = RowBlocks(loaded, _memory(loaded, num_rows), num_rows)
    whole = _whole(loaded)
    expected = blocks.run([whole])
    for trial in range(_NUM_TRIALS):
        others = _others(loaded, 1 + 7 * trial % num_rows, seed=trial + 1)
        if not torch.equal(blocks.run([others, whole]), expected):
            return False
    return True


def _memory(loaded: LoadedModel, num_others: int) -> PoolMemory:
    num_blocks = -(-_NUM_TRIED // _BLOCK_SIZE) + -(-num_others // _BLOCK_SIZE)
    return PoolMemory(loaded.layout(_BLOCK_SIZE), num_blocks, loaded.model.device)


def _whole(loaded: LoadedModel) -> Part:
    ids = _random_ids(loaded, _NUM_TRIED, 0)
    return Part(ids, 0, range(-(-_NUM_TRIED // _BLOCK_SIZE)), range(_NUM_TRIED), first_position=0)


def _others(loaded: LoadedModel, num_tokens: int, seed: int = 1) -> Part:
    """Tokens of another sequence, of which no logits are wanted."""
    first = -(-_NUM_TRIED // _BLOCK_SIZE)
    blocks = range(first, first + -(-num_tokens // _BLOCK_SIZE))
    return Part(_random_ids(loaded, num_tokens, seed), 0, blocks, range(0), first_position=0)


def _random_ids(loaded: LoadedModel, num_tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(loaded.vocab_size, (num_tokens,), generator=generator).tolist()
    return ids
