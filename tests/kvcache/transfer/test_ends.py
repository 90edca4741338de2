"""Hand-offs ended by the prefill side: the receiver learns how, and every release happens once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from tests.kvcache.transfer.rig import (
    WAIT_S,
    MakeMemory,
    MakeServer,
    Releases,
    client_of,
    each_transport,
    failure_of,
    on_verified,
)


@each_transport
def test_a_lease_that_ended_before_the_read(transport: str, make_memory: MakeMemory, make_server: MakeServer) -> None:
    releases = Releases()
    export = make_server(make_memory(), lease_s=0.05).open(1, releases.put)
    export.publish([0])
    export.seal(b"")
    assert releases.get(timeout=WAIT_S) is ReleaseReason.EXPIRED
    error = failure_of(client_of(make_memory(), transport).pull(export.handle, 0, [0]))
    assert error.reason is TransferFailure.EXPIRED
    assert releases.empty()


@each_transport
def test_a_lease_that_ends_during_the_read(transport: str, make_memory: MakeMemory, make_server: MakeServer) -> None:
    """B1: pages are reused while the reader is delayed."""
    source, sink, releases = make_memory(seed=1), make_memory(), Releases()
    reasons: list[ReleaseReason] = []
    export = make_server(source, lease_s=0.05).open(1, releases.put)

    def on_progress(_: int) -> None:
        if not reasons:
            export.seal(b"never to be seen")
            reasons.append(releases.get(timeout=WAIT_S))
            source.tensor.fill_(666)

    export.publish(range(8))
    error = failure_of(client_of(sink, transport, on_verified(on_progress)).pull(export.handle, 0, range(8)))
    assert error.reason is TransferFailure.EXPIRED
    assert reasons == [ReleaseReason.EXPIRED]
    assert releases.empty()


@each_transport
def test_progress_renews_the_lease(transport: str, make_memory: MakeMemory, make_server: MakeServer) -> None:
    export = make_server(make_memory(seed=1)).open(1, Releases().put)
    export.publish(range(8))
    export.seal(b"kept")
    deadlines: list[float] = []

    def on_progress(num_verified: int) -> None:
        # P may hear of progress a little later than D makes it, but D's next word is held back until it did.
        limit = time.monotonic() + WAIT_S
        while num_verified == 8 and export.deadline == deadlines[0] and time.monotonic() < limit:
            pass
        assert export.deadline is not None
        deadlines.append(export.deadline)

    client_of(make_memory(), transport, on_verified(on_progress)).pull(export.handle, 0, range(8)).run()
    assert deadlines == sorted(deadlines)
    assert deadlines[-1] > deadlines[0]


def test_no_lease_runs_before_the_seal(make_memory: MakeMemory, make_server: MakeServer) -> None:
    releases, expired = Releases(), Releases()
    server = make_server(make_memory(), lease_s=0.05)
    slow = server.open(1, releases.put)
    slow.publish([0])
    server.open(2, expired.put).seal(b"")
    assert expired.get(timeout=WAIT_S) is ReleaseReason.EXPIRED
    assert slow.deadline is None and releases.empty()


@each_transport
@pytest.mark.parametrize("when", ["before", "during"])
def test_an_abort_tells_the_receiver_why(
    when: str,
    transport: str,
    make_memory: MakeMemory,
    make_server: MakeServer,
    workers: ThreadPoolExecutor,
) -> None:
    releases, started = Releases(), threading.Event()
    export = make_server(make_memory(seed=1)).open(1, releases.put)
    export.publish([0])
    if when == "before":
        export.abort("prefill failed: out of luck")
    pull = client_of(make_memory(), transport, on_verified(lambda _: started.set())).pull(export.handle, 0, [0, 1])
    pulled = workers.submit(pull.run)
    if when == "during":
        assert started.wait(WAIT_S)
        export.abort("prefill failed: out of luck")
    export.abort("again")
    with pytest.raises(TransferError) as failure:
        pulled.result(timeout=WAIT_S)
    assert (failure.value.reason, failure.value.text) == (TransferFailure.ABORTED, "prefill failed: out of luck")
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ABORTED
    assert releases.empty()


def test_a_second_claim_of_an_acknowledged_hand_off_is_refused(
    make_memory: MakeMemory, make_server: MakeServer
) -> None:
    export = make_server(make_memory()).open(1, Releases().put)
    export.seal(b"once")
    client = client_of(make_memory(), "tcp")
    client.pull(export.handle, 0, []).run()
    assert failure_of(client.pull(export.handle, 0, [])).reason is TransferFailure.REFUSED


def test_closing_ends_everything(make_memory: MakeMemory, make_server: MakeServer, workers: ThreadPoolExecutor) -> None:
    server, releases, started = make_server(make_memory()), Releases(), threading.Event()
    exports = [server.open(leg, releases.put) for leg in range(3)]
    exports[0].publish([0])
    exports[1].seal(b"")
    pull = client_of(make_memory(), "tcp", on_verified(lambda _: started.set())).pull(exports[0].handle, 0, [0, 1])
    pulled = workers.submit(pull.run)
    assert started.wait(WAIT_S)
    server.close()
    server.close()
    assert [releases.get(timeout=WAIT_S) for _ in exports] == [ReleaseReason.CLOSED] * 3
    assert releases.empty()
    assert pulled.exception(timeout=WAIT_S) is not None


def test_a_callback_that_fails_harms_nobody(make_memory: MakeMemory, make_server: MakeServer) -> None:
    def fail(_: ReleaseReason) -> None:
        raise KeyError("owner is confused")

    server = make_server(make_memory())
    export = server.open(1, fail)
    export.seal(b"fine")
    assert client_of(make_memory(), "tcp").pull(export.handle, 0, []).run().record == b"fine"
    assert server.counters.released[ReleaseReason.ACKNOWLEDGED] == 1


def test_a_release_waits_for_the_read_that_is_going_on(make_memory: MakeMemory, make_server: MakeServer) -> None:
    releases = Releases()
    export = make_server(make_memory()).open(1, releases.put)
    export.publish([4, 5, 6])
    with export.pinned(1, 5) as blocks:
        assert list(blocks) == [5, 6]
        export.abort("meanwhile")
        assert releases.empty()
        with export.pinned(0, 5) as later:
            assert list(later) == []
        assert releases.empty()
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ABORTED


def test_racing_ends_release_once(make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory())
    barrier = threading.Barrier(6)

    def end(export: Export, number: int) -> None:
        barrier.wait(WAIT_S)
        with export.pinned(0, 1):
            if number % 3 == 0:
                export.abort("race")
            elif number % 3 == 1:
                export.expire(time.monotonic() + 3600.0)  # the lease is surely over by then
            else:
                export.acknowledge(0)

    with ThreadPoolExecutor(6) as pool:
        for leg in range(200):
            releases = Releases()
            export = server.open(leg, releases.put)
            export.seal(b"")
            list(pool.map(end, [export] * 6, range(6)))
            assert releases.get(timeout=WAIT_S) in ReleaseReason
            assert releases.empty()
