"""What the transfer port needs of the memory that KV is pulled from and into."""

from collections.abc import Sequence
from typing import Protocol


class RegisteredMemory(Protocol):
    """Blocks by number, each one range of `block_bytes` bytes. `kvcache.pool_memory` is one."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def is_host(self) -> bool:
        """Whether blocks are ordinary memory of this process, as `address` and `block_views` need."""

    def address(self, block: int) -> int:
        """Says where the block starts in the address space of its device."""

    def block_views(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of `blocks` in that order, writable, without a copy. Raises ValueError off the host."""

    def read_out(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns the bytes of `blocks` in that order; a staged copy where they are not host memory."""

    def landing(self, blocks: Sequence[int]) -> list[memoryview]:
        """Returns writable memory for the bytes of `blocks`, which become their content with `write_in`."""

    def write_in(self, blocks: Sequence[int], landed: Sequence[memoryview]) -> None:
        """Makes what was received into `landing(blocks)` the content of `blocks`."""
