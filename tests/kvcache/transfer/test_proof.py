"""In a cluster with a secret a hand-off is only for those who know it."""

import queue
import socket
from dataclasses import replace

import pytest

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import NO_PROOF, Claim
from kvcache.transfer.server import TransferServer
from tests.kvcache.transfer.rig import WAIT_S, MakeMemory, MakeServer

OLD, NEW = b"last year's", b"this year's"


def opened(server: TransferServer, leg: int = 1) -> tuple[Export, "queue.SimpleQueue[ReleaseReason]"]:
    releases: queue.SimpleQueue[ReleaseReason] = queue.SimpleQueue()
    export = server.open(leg, releases.put)
    export.publish([0, 1])
    export.seal(b"record")
    return export, releases


def pull(sink: PoolMemory, handle: KvHandle, secret: bytes | None) -> bytes:
    return TransferClient(sink, sink.layout.fingerprint(), secret=secret).pull(handle, 0, [0, 1]).run().record


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_who_knows_a_secret_of_the_cluster_is_served(
    secret: bytes, make_memory: MakeMemory, make_server: MakeServer
) -> None:
    """Several are known while a new one comes in."""
    server = make_server(make_memory(seed=1), secrets=(NEW, OLD))
    export, releases = opened(server)
    assert pull(make_memory(), export.handle, secret) == b"record"
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED


@pytest.mark.parametrize("secret", [None, b"", b"wrong", NEW + b" "])
def test_the_token_alone_is_of_no_use(secret: bytes | None, make_memory: MakeMemory, make_server: MakeServer) -> None:
    server = make_server(make_memory(seed=1), secrets=(NEW,))
    export, releases = opened(server)
    for handle in (export.handle, replace(export.handle, token=bytes(16))):
        with pytest.raises(TransferError, match="secret") as caught:
            pull(make_memory(), handle, secret)
        assert caught.value.reason is TransferFailure.REFUSED
    assert pull(make_memory(), export.handle, NEW) == b"record"
    assert releases.get(timeout=WAIT_S) is ReleaseReason.ACKNOWLEDGED


def test_without_a_secret_a_proof_is_not_looked_at(make_memory: MakeMemory, make_server: MakeServer) -> None:
    export, _ = opened(make_server(make_memory(seed=1)))
    assert pull(make_memory(), export.handle, NEW) == b"record"


def test_a_proof_is_for_one_claim_only() -> None:
    claim = Claim(bytes(16), 1, 2, bytes(16), 3, frozenset({1}))
    proven = claim.prove(NEW)
    assert Claim.parse(proven.frame().payload) == proven
    assert proven.is_proven([OLD, NEW]) and not proven.is_proven([OLD]) and not proven.is_proven([])
    assert claim.proof == NO_PROOF and not claim.is_proven([NEW])
    for changed in (
        replace(proven, token=b"x" * 16),
        replace(proven, leg=2),
        replace(proven, epoch=3),
        replace(proven, num_skip=0),
        replace(proven, kinds=frozenset({2})),
    ):
        assert not changed.is_proven([NEW]), changed


def test_the_refusal_says_the_same_for_a_hand_off_that_exists_and_one_that_does_not(
    make_memory: MakeMemory, make_server: MakeServer
) -> None:
    server = make_server(make_memory(seed=1), secrets=(NEW,))
    export, _ = opened(server)
    host, port = server.address.rsplit(":", 1)
    answers = []
    for token in (export.handle.token, b"x" * 16):
        claim = Claim(token, 1, export.handle.epoch, export.handle.layout, 0, frozenset({1})).prove(OLD)
        with socket.create_connection((host, int(port))) as puller:
            puller.sendall(claim.frame().pack())
            puller.settimeout(WAIT_S)
            answers.append(b"".join(iter(lambda: puller.recv(4096), b"")))
    assert answers[0] == answers[1]
