import time

import pytest

from kvcache.transfer.frames import Frame, FrameType
from worker.faults.frames import FrameFaults
from worker.faults.plan import Fault, FaultPoint

FRAME = Frame(FrameType.BLOCKS, b"payload")


def passed(text: str, ranges: list[bytes]) -> bytes | None:
    faults = FrameFaults(FaultPoint([Fault.parse(text)]))
    left = faults(FRAME, [memoryview(data) for data in ranges])
    return None if left is None else b"".join(left)


def test_each_action_does_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert passed("transfer.drop@1", [b"abc"]) == b""
    assert passed("transfer.close@1", [b"abc"]) is None
    assert passed("transfer.delay=7@1", [b"abc"]) == b"abc"
    assert slept == [7.0]
    assert passed("transfer.close@2", [b"abc"]) == b"abc"


def test_damage_never_touches_the_pool() -> None:
    pool = b"kv of a block"
    damaged = passed("transfer.corrupt@1", [b"frame", pool, b""])
    assert damaged is not None and damaged != b"frame" + pool and len(damaged) == len(b"frame" + pool)
    assert pool == b"kv of a block"
