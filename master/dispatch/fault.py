"""Who is to blame for a leg's failure; what it costs, and whether it is tried again, follows from that."""

from enum import Enum

from master.errors import ErrorKind
from master.workers.leg import Leg, Loss
from protos.session_messages import ErrorCode, Failure


class Fault(Enum):
    REQUEST = "request"  # it would fail anywhere
    NO_ROOM = "no_room"  # the worker's queue is full: another one is asked
    LEFT = "left"  # the worker drains, or was cut off before it began
    LOST = "lost"  # the worker was lost while it ran the leg
    TRANSFER = "transfer"  # KV did not get from one worker to the other
    ENGINE = "engine"  # the worker could not do its work


ERROR_KINDS = {
    ErrorCode.INVALID_ARGUMENT: ErrorKind.INVALID_REQUEST,
    ErrorCode.DEADLINE_EXCEEDED: ErrorKind.DEADLINE_EXCEEDED,
    ErrorCode.RESOURCE_EXHAUSTED: ErrorKind.OVERLOADED,
    ErrorCode.UNAVAILABLE: ErrorKind.UNAVAILABLE,
    ErrorCode.TRANSFER_FAILED: ErrorKind.UNAVAILABLE,
    ErrorCode.PEER_UNREACHABLE: ErrorKind.UNAVAILABLE,
    ErrorCode.INTERNAL: ErrorKind.INTERNAL,
}
assert set(ERROR_KINDS) == set(ErrorCode)

_BY_CODE = {
    ErrorCode.INVALID_ARGUMENT: Fault.REQUEST,
    ErrorCode.DEADLINE_EXCEEDED: Fault.REQUEST,
    ErrorCode.RESOURCE_EXHAUSTED: Fault.NO_ROOM,
    ErrorCode.UNAVAILABLE: Fault.LEFT,
    ErrorCode.TRANSFER_FAILED: Fault.TRANSFER,
    ErrorCode.PEER_UNREACHABLE: Fault.TRANSFER,
    ErrorCode.INTERNAL: Fault.ENGINE,
}
assert set(_BY_CODE) == set(ErrorCode)


def fault_of(leg: Leg, failure: Failure) -> Fault:
    match leg.loss:
        case None:
            return _BY_CODE[failure.code]
        case Loss.DRAINED:
            return Fault.LEFT
        case Loss.SILENT if not leg.has_started:
            return Fault.LEFT
        case _:
            return Fault.LOST


def leaves_kv(leg: Leg, failure: Failure) -> bool:
    """Whether a decode worker failed before it took the KV, so that the prefill worker still has it."""
    if leg.is_lost or leg.has_prefilled:
        return False
    is_refusal = failure.code in (ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE) and not leg.has_started
    return is_refusal or failure.code is ErrorCode.PEER_UNREACHABLE


class AttemptFailed(Exception):
    """The attempt ended before its sequences did. `began_s`: when (time.monotonic()); `worker` is to be avoided."""

    def __init__(self, failure: Failure, worker: str, fault: Fault, began_s: float) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.worker = worker
        self.fault = fault
        self.began_s = began_s
