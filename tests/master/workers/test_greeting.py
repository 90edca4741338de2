"""R22: who may work together."""

from dataclasses import replace

import pytest

from master.workers.access import WorkerAccess
from master.workers.greeting import MasterIdentity
from protos.session_identity import PROTOCOL, prove
from protos.session_messages import Role, Welcome
from tests.scripted_worker import ScriptedWorker

MASTER = MasterIdentity("master", "1.2.3", access=WorkerAccess(("new", "old")))


def welcome(**changes: object) -> Welcome:
    greeting = replace(ScriptedWorker("mix-0", Role.MIX).welcome, version="1.2.9", protocol=PROTOCOL)
    return replace(greeting, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("secret", ["new", "old"])
def test_a_worker_that_knows_a_secret_is_let_in(secret: str) -> None:
    hello = MASTER.hello()
    assert MASTER.problem(hello, welcome(proof=prove(secret, hello.nonce)), "mix-0") is None
    assert MASTER.problem(hello, welcome(proof=prove(secret, hello.nonce)), None) is None


def test_a_worker_without_the_secret_is_not() -> None:
    hello, earlier = MASTER.hello(), MASTER.hello()
    for proof in (b"", prove("guess", hello.nonce), prove("new", earlier.nonce)):
        problem = MASTER.problem(hello, welcome(proof=proof), "mix-0")
        assert problem is not None and "--cluster_token" in problem


def test_a_cluster_without_a_secret_asks_for_none() -> None:
    master = replace(MASTER, access=WorkerAccess())
    assert master.problem(master.hello(), welcome(), "mix-0") is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"protocol": PROTOCOL + 1}, "session protocol"), ({"version": "1.3.0"}, "pdserve 1.3.0, not 1.2.3")],
)
def test_another_version_is_named(changes: dict[str, object], word: str) -> None:
    master = replace(MASTER, access=WorkerAccess())
    problem = master.problem(master.hello(), welcome(**changes), "mix-0")
    assert problem is not None and word in problem


def test_another_worker_at_the_address_is_named() -> None:
    master = replace(MASTER, access=WorkerAccess())
    assert master.problem(master.hello(), welcome(), "mix-1") == "mix-0 has its address"
