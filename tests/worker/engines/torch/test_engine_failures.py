"""What goes wrong: transfers, peers, time. The leg fails, no token is wrong, and nothing is left behind."""

import contextlib
import dataclasses
import secrets
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import SamplingParams
from protos.session_messages import ErrorCode, Stage, Start
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import (
    BLOCK_SIZE,
    GREEDY,
    HOST,
    PATIENCE_S,
    ForeignPrefill,
    Master,
    Node,
    offer,
)
from tests.worker.engines.torch.reference import prompt
from worker.engines.compute_engine import FirstToken, Run
from worker.legs.hand_off import make_record

LONG = dataclasses.replace(GREEDY, max_tokens=500)


def expect_transfer_failure(node: Node, start: Start, code: ErrorCode = ErrorCode.TRANSFER_FAILED) -> None:
    failure = node.master.failure(start.leg)
    assert failure.code is code, failure
    outcome = node.master.outcome(start.leg)
    assert (outcome.token_ids, outcome.transferred) == ({}, None)
    node.quiesce()


def forged(encoded: bytes) -> dict[str, bytes]:
    handle = KvHandle.decode(encoded)
    fields = msgspec.msgpack.decode(encoded)
    others = {
        "token": {"token": secrets.token_bytes(16)},
        "leg": {"leg": handle.leg + 1},
        "epoch": {"epoch": handle.epoch ^ 1},
        "layout": {"layout": secrets.token_bytes(16)},
        "port": {"address": "127.0.0.1:1"},
        "host name": {"address": f"{'x' * 300}:1"},
        "not an address": {"address": "nowhere"},
        "short token": {"token": b"short"},
    }
    forgeries = {what: msgspec.msgpack.encode(fields | other) for what, other in others.items()}
    return forgeries | {"not a handle": b"no handle"}


@pytest.mark.parametrize("what", forged(KvHandle("127.0.0.1:1", bytes(16), 1, 1, bytes(16), 60.0).encode()))
def test_a_forged_source_gets_nothing(node: Node, decode: Node, what: str) -> None:
    first = offer(node)
    source = forged(node.master.outcome(first.leg).kv_handle)[what]
    second = decode.start(first.prompt_ids, stage=Stage.DECODE, kv_handle=source)
    is_elsewhere = what in ("port", "host name")
    expect_transfer_failure(decode, second, ErrorCode.PEER_UNREACHABLE if is_elsewhere else ErrorCode.TRANSFER_FAILED)
    assert decode.run(prompt(40)).failure is None
    node.cancel(first)


def test_a_pull_that_gets_no_thread_of_its_own_waits_for_another(
    node: Node, decode: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9"""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first = offer(node)
    with ForeignPrefill(decode) as foreign:
        export, endless = foreign.open()
        pulling = decode.start(prompt(50), stage=Stage.DECODE, kv_handle=endless)
        decode.master.wait(pulling.leg, lambda o: o.started is not None)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        source = node.master.outcome(first.leg).kv_handle
        second = decode.start(first.prompt_ids, stage=Stage.DECODE, kv_handle=source)
        decode.master.wait(second.leg, lambda o: o.started is not None)
        monkeypatch.undo()
        export.abort("it was long enough")
        assert decode.master.result(second).token_ids == node.run(first.prompt_ids).token_ids


@pytest.mark.parametrize("what", ["prompt", "salt", "sequences"])
def test_kv_of_another_request_is_never_used(node: Node, decode: Node, what: str) -> None:
    first = offer(node)
    source = node.master.outcome(first.leg).kv_handle
    second = decode.start(
        prompt(40, 1) if what == "prompt" else first.prompt_ids,
        stage=Stage.DECODE,
        cache_salt="other" if what == "salt" else "",
        sequences=(1,) if what == "sequences" else (0,),
        kv_handle=source,
    )
    expect_transfer_failure(decode, second)
    assert decode.pool.snapshot() == []


def record_of(start: Start, token_id: int, model: str) -> bytes:
    return make_record(Run.of(start, 1, model, 0.0), [FirstToken(0, token_id, None)])


def test_a_prefill_worker_that_keeps_to_everything(decode: Node) -> None:
    """What the test below takes away from it."""
    with ForeignPrefill(decode) as foreign:
        export, source = foreign.open()
        export.publish([0, 1, 2])
        second = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=source)
        export.seal(record_of(second, 5, decode.engine.identity.model.identity))
        assert decode.master.result(second).token_ids[0][0] == 5
        assert foreign.released.get(timeout=PATIENCE_S) is ReleaseReason.ACKNOWLEDGED


@pytest.mark.parametrize("what", ["garbage", "token id", "number of blocks", "aborted", "closed"])
def test_a_prefill_worker_that_lies_or_leaves(decode: Node, what: str) -> None:
    with ForeignPrefill(decode) as foreign:
        export, source = foreign.open()
        export.publish([0, 1])
        second = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=source)
        decode.master.wait(second.leg, lambda o: o.started is not None)
        if what == "aborted":
            export.abort("no longer wanted")
        elif what == "closed":
            foreign.server.close()
        else:
            if what != "number of blocks":
                export.publish([2])
            record = record_of(second, 512 if what == "token id" else 5, decode.engine.identity.model.identity)
            export.seal(b"garbage" if what == "garbage" else record)
        expect_transfer_failure(
            decode, second, ErrorCode.PEER_UNREACHABLE if what == "closed" else ErrorCode.TRANSFER_FAILED
        )


def handle_to(node: Node, address: str) -> bytes:
    return KvHandle(address, bytes(16), 1, 1, node.layout.fingerprint(), 60.0).encode()


def test_a_peer_that_refuses_connections_is_unreachable(decode: Node) -> None:
    """R2"""
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    start = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=handle_to(decode, f"{HOST}:{port}"))
    expect_transfer_failure(decode, start, ErrorCode.PEER_UNREACHABLE)


@pytest.mark.parametrize("backlog", ["full", "accepts"])
def test_a_peer_that_does_not_answer_is_unreachable(tiny_llama: Path, backlog: str) -> None:
    """R2: its packets are dropped, or nobody takes the connection that the kernel accepted."""
    with (
        Node(tiny_llama, transfer_connect_timeout_s=0.2) as decode,
        socket.create_server((HOST, 0), backlog=0) as deaf,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3 if backlog == "full" else 0):
            early = stack.enter_context(socket.socket())
            early.setblocking(False)
            early.connect_ex(deaf.getsockname())
        address = f"{HOST}:{deaf.getsockname()[1]}"
        start = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=handle_to(decode, address))
        expect_transfer_failure(decode, start, ErrorCode.PEER_UNREACHABLE)


def test_nobody_takes_the_kv_before_its_lease_ends(tiny_llama: Path) -> None:
    with Node(tiny_llama, kv_lease_s=0.2) as node:
        start = offer(node)
        failure = node.master.failure(start.leg)
        assert failure.code is ErrorCode.TRANSFER_FAILED and "expired" in failure.message
        node.quiesce()
        source = node.master.outcome(start.leg).kv_handle
        with Node(tiny_llama) as late:
            second = late.start(start.prompt_ids, stage=Stage.DECODE, kv_handle=source)
            assert "lease" in late.master.failure(second.leg).message


def test_the_decode_worker_goes_away_while_it_pulls(tiny_llama: Path) -> None:
    with Node(tiny_llama, kv_lease_s=0.3, max_tokens_per_step=BLOCK_SIZE) as node:
        gone = Node(tiny_llama)
        with gone:
            first = node.start(prompt(400), stage=Stage.PREFILL)
            source = node.master.wait(first.leg, lambda o: o.started is not None).kv_handle
            second = gone.start(first.prompt_ids, stage=Stage.DECODE, kv_handle=source)
            gone.master.wait(second.leg, lambda o: o.started is not None)
            gone.close()
        node.quiesce()
        outcome = node.master.outcome(first.leg)
        assert outcome.failure is None or outcome.failure.code is ErrorCode.TRANSFER_FAILED


def test_not_finished_in_time(tiny_llama: Path) -> None:
    with Node(tiny_llama, max_num_seqs=1) as node:
        limit = node.start(prompt(40), LONG, Stage.PREFILL, time_limit_s=0.3)
        failure = node.master.failure(limit.leg)
        assert failure.code is ErrorCode.DEADLINE_EXCEEDED and "0.3 s" in failure.message
        node.quiesce()
        running = node.start(prompt(10), dataclasses.replace(GREEDY, max_tokens=1500))
        queued = node.start(prompt(10), time_limit_s=0.0)
        assert node.master.failure(queued.leg).code is ErrorCode.DEADLINE_EXCEEDED
        node.cancel(running)


def test_not_pulled_in_time(decode: Node) -> None:
    with ForeignPrefill(decode) as foreign:
        _, source = foreign.open()
        start = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=source, time_limit_s=0.3)
        assert decode.master.failure(start.leg).code is ErrorCode.DEADLINE_EXCEEDED
        decode.quiesce()


def test_a_master_that_leaves_takes_its_legs_along(tiny_llama: Path) -> None:
    with Node(tiny_llama, max_num_seqs=2) as node, ForeignPrefill(node) as foreign:
        _, source = foreign.open()
        leaving = Master()
        node.legs.attach(leaving)
        begun = offer(node)
        mine = node.start(prompt(20), LONG)
        stages = (Stage.PREFILL, Stage.DECODE, Stage.WHOLE, Stage.WHOLE)
        for number, stage in enumerate(stages, start=100):
            kv_handle = source if stage is Stage.DECODE else None
            sampling = dataclasses.replace(GREEDY, max_tokens=1500)
            start = Start(number, "r", stage, prompt(40), sampling, kv_handle=kv_handle)
            node.legs.begin(leaving, start)
        leaving.wait(100, lambda o: bool(o.token_ids))
        node.legs.detach(leaving)
        node.flush()
        num_told = [leaving.outcome(number).num_updates for number in (100, 101, 102, 103)]
        assert len(node.master.result(mine).token_ids[0]) == 500
        assert num_told == [leaving.outcome(number).num_updates for number in (100, 101, 102, 103)]
        eventually(lambda: node.legs.num_unreleased == 1, "only what was handed off is left")
        node.cancel(begun)


@pytest.mark.parametrize("phase", ["handed off", "pulling", "queued", "decoding", "prefilling"])
def test_stop_returns_whatever_goes_on(tiny_llama: Path, phase: str) -> None:
    with Node(tiny_llama, max_num_seqs=1, max_tokens_per_step=BLOCK_SIZE) as node, ForeignPrefill(node) as foreign:
        _, source = foreign.open()
        if phase == "handed off":
            offer(node)
        elif phase == "pulling":
            start = node.start(prompt(40), stage=Stage.DECODE, kv_handle=source)
            node.master.wait(start.leg, lambda o: o.started is not None)
        else:
            length = 1500 if phase == "prefilling" else 10
            for _ in range(2 if phase == "queued" else 1):
                start = node.start(prompt(length), LONG, Stage.WHOLE)
            node.master.wait(1, lambda o: o.started is not None)
        node.close()
        assert node.legs.num_unreleased == 0
        assert node.master.outcome(1).failure is None


def test_sampling_parameters_out_of_range_fail_only_their_leg(llama: Node) -> None:
    good = llama.start(prompt(20, 33))
    bad = llama.start(prompt(20, 33), SamplingParams(logit_bias={512: 1.0}))
    assert llama.master.failure(bad.leg).code is ErrorCode.INVALID_ARGUMENT
    assert llama.master.result(good).failure is None
