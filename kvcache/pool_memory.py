"""The memory of the KV pool: one allocation, in which a block is one contiguous range of bytes.

Memory is zeroed by the operating system when a page is first touched, so a large pool costs nothing at start
and no other process's data is ever in it. Content that nobody computed or received is still not content:
what a block holds is decided by the book-keeping in `block_pool`, never by looking at the bytes.
"""

from collections.abc import Iterable, Sequence

import torch

from kvcache.huge_pages import mapped_memory
from kvcache.layout import KvLayout


class PoolMemory:
    """`tensor[num_blocks, num_layers, k|v, block_size, num_kv_heads, head_dim]` on `device`.

    The engine thread writes blocks. Other threads read only blocks whose content is final (`read_out`) and write
    only blocks reserved for a transfer (`landing`, then `write_in`), so no lock is needed.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device | str = "cpu") -> None:
        """Raises ValueError for an empty pool and what the device raises when the memory is not there."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self._bytes: memoryview | None = None
        shape = (num_blocks, *layout.block_shape)
        if self.device.type == "cpu":
            pages = mapped_memory(num_blocks * layout.block_bytes)
            self._bytes = memoryview(pages)
            self.tensor = torch.frombuffer(pages, dtype=layout.dtype).view(shape)
        else:
            self.tensor = torch.zeros(shape, dtype=layout.dtype, device=self.device)

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes

    @property
    def is_host(self) -> bool:
        """Whether blocks are ordinary memory of this process."""
        return self._bytes is not None

    def keys(self, layer: int) -> torch.Tensor:
        """Returns a view `[num_blocks, block_size, num_kv_heads, head_dim]` of one layer's keys."""
        return self.tensor[:, layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """Returns a view `[num_blocks, block_size, num_kv_heads, head_dim]` of one layer's values."""
        return self.tensor[:, layer, 1]

    def copy_block(self, source: int, destination: int) -> None:
        self.tensor[destination].copy_(self.tensor[source])

    def address(self, block: int) -> int:
        """Says where the block starts in the address space of its device."""
        self._check([block])
        return self.tensor.data_ptr() + block * self.block_bytes

    def block_views(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of `blocks` in that order, writable, without a copy; neighbouring ids share one view.

        Raises ValueError on a pool that is not host memory and IndexError for an id out of range.
        """
        if self._bytes is None:
            raise ValueError(f"blocks on {self.device} have no host bytes; use read_out and write_in")
        self._check(blocks)
        size = self.block_bytes
        return [self._bytes[first * size : (last + 1) * size] for first, last in _runs(blocks)]

    def read_out(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of `blocks` in that order: the pool itself on the host, else a staged copy."""
        return self.block_views(blocks) if self.is_host else [self._stage(blocks)]

    def landing(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns writable memory for the bytes of `blocks`; it becomes their content with `write_in`."""
        if self.is_host:
            return self.block_views(blocks)
        self._check(blocks)
        return [memoryview(bytearray(len(blocks) * self.block_bytes))]

    def write_in(self, blocks: Sequence[int], landed: Sequence[memoryview]) -> None:
        """Makes what was received into `landing(blocks)` the content of `blocks`. Free on the host."""
        if self.is_host:
            return
        (staged,) = landed
        content = torch.frombuffer(staged, dtype=self.layout.dtype).view(len(blocks), *self.layout.block_shape)
        self.tensor.index_copy_(0, self._index(blocks), content.to(self.device))

    def _stage(self, blocks: Sequence[int]) -> memoryview:
        self._check(blocks)
        staged = self.tensor.index_select(0, self._index(blocks)).cpu()
        return staged.view(-1).view(torch.uint8).numpy().data

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.device)

    def _check(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise IndexError(f"block {block} is not in a pool of {self.num_blocks}")


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Cuts `blocks` into runs of ascending neighbours, each (first, last)."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] + 1 == block:
            runs[-1] = (runs[-1][0], block)
        else:
            runs.append((block, block))
    return runs
