"""Names KV blocks by content: a 128-bit hash chained over the blocks of a prompt.

Equal in every process and on every host, whatever its hash seed, so that a master can tell which worker holds
which prefix and a decode worker can tell which blocks it need not pull. A collision would serve one user's KV to
another, hence a cryptographic hash.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

HASH_BYTES = 16


def root_hash(model: str, cache_salt: str = "") -> bytes:
    """The parent of a prompt's first block. Prompts of different models or salts share nothing."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES, person=b"pdserve-root")
    for part in (model, cache_salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.digest()


def extend_chain(chain: list[bytes], root: bytes, token_ids: Sequence[int], num_tokens: int, block_size: int) -> None:
    """Appends to `chain` the hashes of the full blocks among the first `num_tokens` ids that it does not have yet."""
    num_blocks = num_tokens // block_size
    first = len(chain)
    if first >= num_blocks:
        return
    data = np.asarray(token_ids[first * block_size : num_blocks * block_size], dtype="<u4").tobytes()
    parent = chain[-1] if chain else root
    step = block_size * 4
    for offset in range(0, len(data), step):
        parent = hashlib.blake2b(parent + data[offset : offset + step], digest_size=HASH_BYTES).digest()
        chain.append(parent)


def prompt_hash(root: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a whole prompt, its partial last block included; what a hand-off is checked against."""
    data = np.asarray(token_ids, dtype="<u4").tobytes()
    return hashlib.blake2b(root + data, digest_size=HASH_BYTES).digest()
