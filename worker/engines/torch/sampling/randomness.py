"""The randomness of sampling as a function of where a token stands, with no state to carry, lose or shift.

Batching, chunking, preemption, the hand-off and a restart leave (seed, sequence, position) alone, so they leave the
chosen tokens alone.
"""

import hashlib
import struct

_PLACE = struct.Struct("<QI")
_SEEDS = 2**64


def uniform(seed: int, sequence: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for the token at `position` of the output of sequence `sequence`.

    Sequence i of a request with seed s is sequence 0 of one with seed s + i, as in vLLM.
    """
    place = _PLACE.pack((seed + sequence) % _SEEDS, position)
    digest = hashlib.blake2b(place, digest_size=8, person=b"pdserve-sample")
    return (int.from_bytes(digest.digest(), "little") >> 11) * 2.0**-53
