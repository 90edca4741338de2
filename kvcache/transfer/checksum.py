"""xxh3-64 of each block. Detects damage and reuse, not malice: the token decides who may talk at all."""

from collections.abc import Sequence

import xxhash


def block_checksums(views: Sequence[memoryview], block_bytes: int) -> list[int]:
    """Returns one checksum for each `block_bytes` of `views`, every view a whole number of blocks."""
    return [
        xxhash.xxh3_64_intdigest(view[start : start + block_bytes])
        for view in views
        for start in range(0, view.nbytes, block_bytes)
    ]
