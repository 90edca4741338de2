import time

from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.handle import KvHandle


def make_export(lease_s: float) -> tuple[Export, list[ReleaseReason]]:
    releases: list[ReleaseReason] = []
    handle = KvHandle("127.0.0.1:1", bytes(16), 1, 1, bytes(16), 60.0)
    return Export(handle, lease_s, releases.append, lambda _: None), releases


def test_an_acknowledgement_after_the_lease_does_not_count() -> None:
    export, releases = make_export(lease_s=1e-6)
    export.publish([1])
    export.seal(b"")
    assert export.deadline is not None
    while time.monotonic() < export.deadline:
        pass
    assert not export.acknowledge(1)
    assert releases == []
    assert export.expire(time.monotonic())
    assert releases == [ReleaseReason.EXPIRED]


def test_only_all_of_a_sealed_export_can_be_acknowledged() -> None:
    export, releases = make_export(lease_s=60)
    export.publish([1, 2])
    assert not export.acknowledge(2)
    export.seal(b"")
    assert not export.acknowledge(1)
    assert export.acknowledge(2)
    assert not export.acknowledge(2)
    assert releases == [ReleaseReason.ACKNOWLEDGED]


def test_an_ended_export_keeps_nothing() -> None:
    export, releases = make_export(lease_s=60)
    export.publish([1])
    export.abort("no longer wanted")
    export.publish([2])
    export.seal(b"late")
    export.abort("again")
    state = export.state()
    assert (state.num_blocks, state.record, export.deadline) == (0, None, None)
    assert releases == [ReleaseReason.ABORTED]
