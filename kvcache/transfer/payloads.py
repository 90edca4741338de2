"""What the payloads of the frames mean. Every `parse` raises FrameError for bytes that say nothing sensible."""

import hmac
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvcache.transfer.frames import MAX_BLOCKS_PER_FRAME, MAX_TOLD_BYTES, Frame, FrameError, FrameType

_CLAIM = struct.Struct("!16sQQ16sIQ")
_PROOF = struct.Struct("!32s")
_COUNT = struct.Struct("!I")
_COUNTS = struct.Struct("!II")
_KIND = struct.Struct("!B")
_OFFER = struct.Struct("!BH")
_U64 = np.dtype(">u8")

CLAIM_BYTES = _CLAIM.size + _PROOF.size
NO_PROOF = bytes(_PROOF.size)
MAX_KIND = 63


@dataclass(frozen=True)
class Claim:
    """Who asks for what. `kinds` are the transports that the puller has; `proof` is what `prove` makes, or zeros."""

    token: bytes = field(repr=False)
    leg: int
    epoch: int
    layout: bytes
    num_skip: int
    kinds: frozenset[int]
    proof: bytes = field(default=NO_PROOF, repr=False)

    def frame(self) -> Frame:
        return Frame(FrameType.CLAIM, self._claim() + self.proof)

    def prove(self, secret: bytes) -> "Claim":
        """Returns the same claim from somebody who knows the secret."""
        return replace(self, proof=self._mac(secret))

    def is_proven(self, secrets: Iterable[bytes]) -> bool:
        """Whether it comes from somebody who knows one of them; in a time that tells nothing about them."""
        is_known = False
        for secret in secrets:
            is_known |= hmac.compare_digest(self._mac(secret), self.proof)
        return is_known

    def _mac(self, secret: bytes) -> bytes:
        return hmac.digest(secret, self._claim(), "sha256")

    def _claim(self) -> bytes:
        kinds = sum(1 << kind for kind in self.kinds)
        return _CLAIM.pack(self.token, self.leg, self.epoch, self.layout, self.num_skip, kinds)

    @classmethod
    def parse(cls, payload: bytes) -> "Claim":
        if len(payload) != CLAIM_BYTES:
            raise FrameError(f"payload of {len(payload)} bytes, expected {CLAIM_BYTES}")
        token, leg, epoch, layout, num_skip, kinds = _CLAIM.unpack_from(payload)
        known = frozenset(kind for kind in range(MAX_KIND + 1) if kinds >> kind & 1)
        return cls(token, leg, epoch, layout, num_skip, known, payload[_CLAIM.size :])


@dataclass(frozen=True)
class Accept:
    """What the prefill side offers: transports by kind, each with bytes that only that transport understands."""

    offers: Mapping[int, bytes]

    def frame(self) -> Frame:
        return Frame(FrameType.ACCEPT, b"".join(_OFFER.pack(kind, len(o)) + o for kind, o in self.offers.items()))

    @classmethod
    def parse(cls, payload: bytes) -> "Accept":
        offers: dict[int, bytes] = {}
        position = 0
        while position < len(payload):
            try:
                kind, num_bytes = _OFFER.unpack_from(payload, position)
            except struct.error:
                raise FrameError("ACCEPT ends within an offer") from None
            position += _OFFER.size + num_bytes
            if kind in offers or position > len(payload):
                raise FrameError(f"ACCEPT offers {kind} twice or not whole")
            offers[kind] = payload[position - num_bytes : position]
        return cls(offers)


@dataclass(frozen=True)
class Begin:
    kind: int

    def frame(self) -> Frame:
        return Frame(FrameType.BEGIN, _KIND.pack(self.kind))

    @classmethod
    def parse(cls, payload: bytes) -> "Begin":
        return cls(*_KIND.unpack(_sized(payload, _KIND)))


@dataclass(frozen=True)
class Blocks:
    """Blocks `first`, `first + 1`, … of the prompt; `told` is what the transport's receiver needs to get them."""

    first: int
    checksums: Sequence[int]
    told: bytes = b""

    def frame(self) -> Frame:
        counts = _COUNTS.pack(self.first, len(self.checksums))
        return Frame(FrameType.BLOCKS, counts + np.array(self.checksums, _U64).tobytes() + self.told)

    @classmethod
    def parse(cls, payload: bytes) -> "Blocks":
        if len(payload) < _COUNTS.size:
            raise FrameError(f"BLOCKS of {len(payload)} bytes")
        first, count = _COUNTS.unpack_from(payload)
        end = _COUNTS.size + 8 * count
        if not 1 <= count <= MAX_BLOCKS_PER_FRAME or not 0 <= len(payload) - end <= MAX_TOLD_BYTES:
            raise FrameError(f"BLOCKS of {len(payload)} bytes for {count} blocks")
        checksums: list[int] = np.frombuffer(payload, _U64, count, _COUNTS.size).tolist()
        return cls(first, checksums, payload[end:])


@dataclass(frozen=True)
class Verified:
    """Tells how many leading blocks the puller has verified."""

    num_blocks: int

    def frame(self) -> Frame:
        return Frame(FrameType.VERIFIED, _COUNT.pack(self.num_blocks))

    @classmethod
    def parse(cls, payload: bytes) -> "Verified":
        return cls(*_COUNT.unpack(_sized(payload, _COUNT)))


@dataclass(frozen=True)
class Ack:
    num_blocks: int

    def frame(self) -> Frame:
        return Frame(FrameType.ACK, _COUNT.pack(self.num_blocks))

    @classmethod
    def parse(cls, payload: bytes) -> "Ack":
        return cls(*_COUNT.unpack(_sized(payload, _COUNT)))


@dataclass(frozen=True)
class Record:
    num_blocks: int
    record: bytes

    def frame(self) -> Frame:
        return Frame(FrameType.RECORD, _COUNT.pack(self.num_blocks) + self.record)

    @classmethod
    def parse(cls, payload: bytes) -> "Record":
        if len(payload) < _COUNT.size:
            raise FrameError(f"RECORD of {len(payload)} bytes")
        return cls(_COUNT.unpack_from(payload)[0], payload[_COUNT.size :])


def _sized(payload: bytes, fields: struct.Struct) -> bytes:
    if len(payload) != fields.size:
        raise FrameError(f"payload of {len(payload)} bytes, expected {fields.size}")
    return payload
