"""The frames of the transfer port. All numbers are big-endian.

Every frame is a header of 20 bytes and a payload:

    offset  bytes
    0       4      magic "PDKV"
    4       1      version
    5       1      type, see FrameType
    6       2      zero
    8       4      payload length
    12      4      CRC-32 of the payload
    16      4      CRC-32 of bytes 0 … 15

The first five bytes mean the same in every version. Whoever gets a CLAIM of another version than its own answers with a
REFUSE of its own and says no more; what has another version is never looked into.

A header is checked before anything is read or allocated because of it, and each type has its own limit on the
payload. Only a BLOCKS frame may be followed by bytes that are not a frame, if the transport that was agreed on works
so: the blocks themselves, `count * block_bytes` bytes, where `block_bytes` is known from the layout both sides agreed
on and each block has its own checksum in the payload.

Who says what (D pulls from P):

    D  CLAIM     token, leg, epoch, layout, num_skip, kinds of transport, proof
    P  ACCEPT    kinds of transport that are offered, each with bytes of its own      or  REFUSE reason, text
    D  BEGIN     the kind that D can use and likes best
    P  BLOCKS    further complete blocks, in prompt order, as prefill completes them
    P  PING      nothing new, still here
    D  VERIFIED  number of leading blocks that D has verified
    P  RECORD    total number of blocks, hand-off record
    D  ACK       all read and verified
    P  RELEASED  the lease held until the ACK            or, at any time after ACCEPT,  ABORT reason, text

The token alone says which hand-off it is and that it may be read. In a cluster with a secret the proof is the
HMAC-SHA-256, under that secret, of all that comes before it in CLAIM, so that a token is of no use outside the cluster;
without one it is zero and not looked at. It proves who asks, not what is sent: nothing here is encrypted.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"PDKV"
PROTOCOL_VERSION = 1
HEADER_BYTES = 20
MAX_BLOCKS_PER_FRAME = 1024
MAX_TOLD_BYTES = 64 * MAX_BLOCKS_PER_FRAME
MAX_RECORD_BYTES = 1 << 20
MAX_TEXT_BYTES = 4096

_CHECKED = struct.Struct("!4sBBHII")
_CRC = struct.Struct("!I")


class FrameError(ValueError):
    """These bytes are not a frame of this protocol, or not one that fits here."""


class OtherVersion(FrameError):
    """The peer speaks another version of this protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"transfer protocol version {version}, this worker speaks {PROTOCOL_VERSION}")


class FrameType(IntEnum):
    CLAIM = 1
    ACCEPT = 2
    REFUSE = 3
    BEGIN = 4
    BLOCKS = 5
    PING = 6
    VERIFIED = 7
    RECORD = 8
    ACK = 9
    RELEASED = 10
    ABORT = 11


MAX_PAYLOAD_BYTES = {
    FrameType.CLAIM: 256,
    FrameType.ACCEPT: 16384,
    FrameType.REFUSE: 1 + MAX_TEXT_BYTES,
    FrameType.BEGIN: 16,
    FrameType.BLOCKS: 8 + 8 * MAX_BLOCKS_PER_FRAME + MAX_TOLD_BYTES,
    FrameType.PING: 0,
    FrameType.VERIFIED: 16,
    FrameType.RECORD: 4 + MAX_RECORD_BYTES,
    FrameType.ACK: 16,
    FrameType.RELEASED: 0,
    FrameType.ABORT: 1 + MAX_TEXT_BYTES,
}


@dataclass(frozen=True)
class Header:
    type: FrameType
    payload_bytes: int
    payload_crc: int

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "Header":
        """Raises FrameError unless the 20 bytes are an intact header within its type's limit, OtherVersion if so."""
        magic, version, number, reserved, payload_bytes, payload_crc = _CHECKED.unpack_from(data)
        if magic != MAGIC:
            raise FrameError(f"starts with {magic!r}, not {MAGIC!r}")
        if version != PROTOCOL_VERSION:
            raise OtherVersion(version)
        (header_crc,) = _CRC.unpack_from(data, _CHECKED.size)
        if header_crc != zlib.crc32(data[: _CHECKED.size]) or reserved:
            raise FrameError("header is damaged")
        try:
            frame_type = FrameType(number)
        except ValueError:
            raise FrameError(f"unknown frame type {number}") from None
        if payload_bytes > MAX_PAYLOAD_BYTES[frame_type]:
            raise FrameError(f"{frame_type.name} of {payload_bytes} bytes, at most {MAX_PAYLOAD_BYTES[frame_type]}")
        return cls(frame_type, payload_bytes, payload_crc)

    def check(self, payload: bytes | bytearray) -> None:
        """Raises FrameError when the payload is not the one that was sent."""
        if len(payload) != self.payload_bytes or zlib.crc32(payload) != self.payload_crc:
            raise FrameError(f"payload of {self.type.name} is damaged")


@dataclass(frozen=True)
class Frame:
    type: FrameType
    payload: bytes = b""

    def pack(self) -> bytes:
        assert len(self.payload) <= MAX_PAYLOAD_BYTES[self.type], (self.type, len(self.payload))
        checked = _CHECKED.pack(MAGIC, PROTOCOL_VERSION, self.type, 0, len(self.payload), zlib.crc32(self.payload))
        return checked + _CRC.pack(zlib.crc32(checked)) + self.payload
