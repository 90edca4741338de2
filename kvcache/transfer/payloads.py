"""What the payloads of the frames mean. Every `parse` raises FrameError for bytes that say nothing sensible."""

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.frames import MAX_BLOCKS_PER_FRAME, MAX_TEXT_BYTES, Frame, FrameError, FrameType
from kvcache.transfer.handle import TOKEN_BYTES
from kvcache.transfer.transports.host_identity import HostIdentity
from kvcache.transfer.transports.transport import TransportKind

_CLAIM = struct.Struct("!16sQQ16sI16sQB")
_PROOF = struct.Struct("!32s")
_ACCEPT = struct.Struct("!QQ16s")
_COUNT = struct.Struct("!I")
_KIND = struct.Struct("!B")
_U64 = np.dtype(">u8")

HELLO_PAYLOAD_BYTES = _CLAIM.size + _PROOF.size
NO_PROOF = bytes(_PROOF.size)
NONCE_BYTES = TOKEN_BYTES


@dataclass(frozen=True)
class PullHello:
    """`host` is None where one-sided reads are out of the question. `proof` is what `prove` makes, or zeros."""

    token: bytes = field(repr=False)
    leg: int
    epoch: int
    layout: bytes
    num_skip: int
    host: HostIdentity | None
    transports: frozenset[TransportKind]
    proof: bytes = field(default=NO_PROOF, repr=False)

    def frame(self) -> Frame:
        return Frame(FrameType.HELLO, self._claim() + self.proof)

    def prove(self, secret: bytes) -> "PullHello":
        """The same, from somebody who knows the secret."""
        return replace(self, proof=self._mac(secret))

    def is_proven(self, secrets: Sequence[bytes]) -> bool:
        """Whether it comes from somebody who knows one of them; in a time that tells nothing about them."""
        is_known = False
        for secret in secrets:
            is_known |= hmac.compare_digest(self._mac(secret), self.proof)
        return is_known

    def _mac(self, secret: bytes) -> bytes:
        return hmac.digest(secret, self._claim(), "sha256")

    def _claim(self) -> bytes:
        boot_id, pid_namespace = (self.host.boot_id, self.host.pid_namespace) if self.host else (bytes(16), 0)
        offered = sum(1 << kind for kind in self.transports)
        fields = (self.token, self.leg, self.epoch, self.layout, self.num_skip, boot_id, pid_namespace, offered)
        return _CLAIM.pack(*fields)

    @classmethod
    def parse(cls, payload: bytes) -> "PullHello":
        if len(payload) != HELLO_PAYLOAD_BYTES:
            raise FrameError(f"payload of {len(payload)} bytes, expected {HELLO_PAYLOAD_BYTES}")
        fields = _CLAIM.unpack_from(payload)
        token, leg, epoch, layout, num_skip, boot_id, pid_namespace, offered = fields
        host = HostIdentity(boot_id, pid_namespace) if any(boot_id) else None
        transports = frozenset(kind for kind in TransportKind if offered >> kind & 1)
        return cls(token, leg, epoch, layout, num_skip, host, transports, payload[_CLAIM.size :])


@dataclass(frozen=True)
class Accept:
    """Where D may try a one-sided read of `nonce`; `process_id` 0 on the wire says that it may not."""

    process_id: int | None
    nonce_address: int
    nonce: bytes

    def frame(self) -> Frame:
        return Frame(FrameType.ACCEPT, _ACCEPT.pack(self.process_id or 0, self.nonce_address, self.nonce))

    @classmethod
    def parse(cls, payload: bytes) -> "Accept":
        process_id, nonce_address, nonce = _ACCEPT.unpack(_sized(payload, _ACCEPT))
        if process_id >= 2**31:
            raise FrameError(f"ACCEPT names process {process_id}")
        return cls(process_id or None, nonce_address, nonce)


@dataclass(frozen=True)
class Begin:
    transport: TransportKind

    def frame(self) -> Frame:
        return Frame(FrameType.BEGIN, _KIND.pack(self.transport))

    @classmethod
    def parse(cls, payload: bytes) -> "Begin":
        (kind,) = _KIND.unpack(_sized(payload, _KIND))
        try:
            return cls(TransportKind(kind))
        except ValueError:
            raise FrameError(f"unknown transport {kind}") from None


@dataclass(frozen=True)
class Offer:
    """Blocks `first`, `first + 1`, … of the prompt: BLOCKS, or READY when it says where they are in P's memory."""

    first: int
    checksums: Sequence[int]
    addresses: Sequence[int] | None = None

    def frame(self) -> Frame:
        columns = [np.array(self.checksums, _U64).tobytes()]
        if self.addresses is not None:
            columns.append(np.array(self.addresses, _U64).tobytes())
        frame_type = FrameType.BLOCKS if self.addresses is None else FrameType.READY
        return Frame(frame_type, b"".join([_COUNT.pack(self.first), *columns]))

    @classmethod
    def parse(cls, frame: Frame) -> "Offer":
        num_columns = 1 if frame.type is FrameType.BLOCKS else 2
        count, rest = divmod(len(frame.payload) - _COUNT.size, 8 * num_columns)
        if rest or not 1 <= count <= MAX_BLOCKS_PER_FRAME:
            raise FrameError(f"{frame.type.name} of {len(frame.payload)} bytes")
        (first,) = _COUNT.unpack_from(frame.payload)
        numbers: list[int] = np.frombuffer(frame.payload, _U64, offset=_COUNT.size).tolist()
        return cls(first, numbers[:count], numbers[count:] if num_columns == 2 else None)


@dataclass(frozen=True)
class PullProgress:
    num_blocks: int

    def frame(self) -> Frame:
        return Frame(FrameType.PROGRESS, _COUNT.pack(self.num_blocks))

    @classmethod
    def parse(cls, payload: bytes) -> "PullProgress":
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


@dataclass(frozen=True)
class Refusal:
    """REFUSE or ABORT: why there will be nothing more."""

    reason: TransferFailure
    text: str

    def frame(self, frame_type: FrameType) -> Frame:
        text = self.text.encode(errors="replace")[:MAX_TEXT_BYTES]
        return Frame(frame_type, _KIND.pack(self.reason) + text)

    @classmethod
    def parse(cls, payload: bytes) -> "Refusal":
        try:
            reason = TransferFailure(payload[0])
        except (IndexError, ValueError):
            raise FrameError("refusal without a reason") from None
        return cls(reason, payload[1:].decode(errors="replace"))


def _sized(payload: bytes, fields: struct.Struct) -> bytes:
    if len(payload) != fields.size:
        raise FrameError(f"payload of {len(payload)} bytes, expected {fields.size}")
    return payload
