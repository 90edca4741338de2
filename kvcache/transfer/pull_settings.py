"""What all pulls of one client have in common."""

from dataclasses import dataclass, field

from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.transports.transport import Transport


@dataclass(frozen=True)
class PullSettings:
    layout: bytes
    transports: tuple[Transport, ...]
    connect_timeout_s: float
    silence_timeout_s: float
    max_connections: int
    secret: bytes | None = field(default=None, repr=False)
    tap: FrameTap | None = None
