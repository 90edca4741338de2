"""Memory for the packed weights of a network, side by side."""

import torch

from kvcache.huge_pages import mapped_memory

CHUNK_BYTES = 64 << 20
_LINE_BYTES = 64  # of a CPU's cache


class Arena:
    """What is taken is given back all together, when nobody holds a tensor of it any more."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> torch.Tensor:
        """-> uint8 [num_bytes], zeros."""
        needed = -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        if needed > len(self._left):
            self._left = torch.frombuffer(mapped_memory(max(needed, CHUNK_BYTES)), dtype=torch.uint8)
        taken, self._left = self._left[:num_bytes], self._left[needed:]
        return taken
