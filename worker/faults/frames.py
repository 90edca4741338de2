"""What goes wrong with the frames of a transfer."""

import time

from kvcache.transfer.frames import Frame
from worker.faults.plan import Action, FaultPoint


class FrameFaults:
    """A tap on the frames that this worker sends."""

    def __init__(self, point: FaultPoint) -> None:
        self._point = point

    def __call__(self, frame: Frame, ranges: list[memoryview]) -> list[memoryview] | None:
        for fault in self._point.passing():
            match fault.action:
                case Action.DELAY:
                    time.sleep(fault.seconds)
                case Action.DROP:
                    ranges = []
                case Action.CORRUPT:
                    ranges = _with_a_flipped_bit(ranges)
                case Action.CLOSE:
                    return None
        return ranges


def _with_a_flipped_bit(ranges: list[memoryview]) -> list[memoryview]:
    """The last byte is changed, in a copy: the pool's own bytes stay right."""
    *others, last = [view for view in ranges if view.nbytes]
    damaged = bytearray(last)
    damaged[-1] ^= 0x10
    return [*others, memoryview(damaged)]
