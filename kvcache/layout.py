"""The shape of one KV block, and a fingerprint by which two processes know that their blocks mean the same."""

import hashlib
import json
import math
import sys
from dataclasses import dataclass

import torch

FORMAT_VERSION = 1


@dataclass(frozen=True)
class KvLayout:
    """What the bytes of a block mean: `[num_layers, k|v, block_size, num_kv_heads, head_dim]`, C order.

    `model` names the weights: keys and values of another model are foreign even where the shape agrees.
    Raises ValueError for a dimension below one.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    model: str

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_size", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_elements(self) -> int:
        return math.prod(self.block_shape)

    @property
    def token_elements(self) -> int:
        """What one layer keeps of a token's keys, or of its values."""
        return self.num_kv_heads * self.head_dim

    @property
    def block_bytes(self) -> int:
        return self.block_elements * self.dtype.itemsize

    def fingerprint(self) -> bytes:
        """Returns 16 bytes that are equal in every process and on every run for an equal layout."""
        meaning = json.dumps([FORMAT_VERSION, sys.byteorder, self.block_shape, str(self.dtype), self.model])
        return hashlib.blake2b(meaning.encode(), digest_size=16).digest()
