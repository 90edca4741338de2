"""What the decode side needs to find and claim one hand-off."""

import math
from dataclasses import dataclass, field

import msgspec

TOKEN_BYTES = 16
LAYOUT_BYTES = 16
MAX_NUMBER = 2**64 - 1


@dataclass(frozen=True)
class KvHandle:
    """Claims the KV of one leg; whoever has the token may read it.

    `address` is "host:port", an IPv6 literal in brackets. `epoch` names one life of the prefill worker, so that a
    handle from before a restart never reaches the blocks of after it. `lease_s` is how long the KV is kept for a puller
    that shows no progress, from the end of prefill on. Raises ValueError for a malformed field.
    """

    address: str
    token: bytes = field(repr=False)
    leg: int
    epoch: int
    layout: bytes
    lease_s: float

    def __post_init__(self) -> None:
        split_address(self.address)
        if len(self.token) != TOKEN_BYTES or len(self.layout) != LAYOUT_BYTES:
            raise ValueError(f"token and layout have {TOKEN_BYTES} bytes, got {len(self.token)}, {len(self.layout)}")
        if not (0 <= self.leg <= MAX_NUMBER and 0 <= self.epoch <= MAX_NUMBER):
            raise ValueError(f"leg and epoch are unsigned 64-bit, got {self.leg}, {self.epoch}")
        if not 0 < self.lease_s < math.inf:
            raise ValueError(f"lease_s must be above 0 and finite, got {self.lease_s}")

    def encode(self) -> bytes:
        """Returns what travels from one worker to the other; whoever carries it need not look inside."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> "KvHandle":
        """Raises ValueError for bytes that are no handle."""
        return msgspec.msgpack.decode(data, type=KvHandle)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Returns (host, port), the host without brackets. Raises ValueError for anything but host:port or [host]:port."""
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    if not colon or not bare or is_bracketed != (":" in bare) or not (port.isascii() and port.isdigit()):
        raise ValueError(f"not an address: {address!r} (host:port, IPv6 as [host]:port)")
    if not 0 < int(port) < 65536:
        raise ValueError(f"not a port: {address!r}")
    return bare, int(port)
