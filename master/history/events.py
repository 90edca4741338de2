"""What happened to a request and when, as its master saw it."""

from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    ATTEMPT = "attempt"  # sent to its first worker
    PREFILL_STARTED = "prefill started"
    PREFILLED = "prefilled"
    TRANSFER_STARTED = "transfer started"
    TRANSFERRED = "transferred"
    FIRST_TOKEN = "first token"
    FAILED = "failed"  # the attempt, not the request


@dataclass(frozen=True, slots=True)
class Event:
    """`duration_s` is what the worker measured of that which ended here: of a start, the wait in its queue."""

    kind: EventKind
    at_s: float  # since arrival
    attempt: int
    worker: str = ""
    duration_s: float = 0.0
    detail: str = ""
