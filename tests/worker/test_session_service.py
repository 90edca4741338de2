"""Sessions over real gRPC, with a real engine behind them."""

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from protos import session_pb2 as wire
from protos.sampling_messages import SamplingParams
from protos.session_identity import PROTOCOL, is_proof
from protos.session_messages import (
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    ErrorCode,
    Heartbeat,
    Hello,
    LoadReport,
    SnapshotRequest,
    Stage,
    Standing,
    Start,
    Step,
    ToWorker,
    Welcome,
)
from serving.keys import Keys
from tests.busy_master import busy_master
from tests.worker.engines.torch.engine_rig import GREEDY, Node
from tests.worker.engines.torch.reference import prompt
from tests.worker.session_rig import HELLO, LIMIT_S, Served, Session, session, stream, until, whole
from worker.faults.messages import MessageFaults
from worker.faults.plan import Fault, FaultPoint

SILENCE_S = 0.5
PROCESS_SILENCE_S = 2.0


@pytest.fixture
async def served(llama: Node) -> AsyncIterator[Served]:
    running = Served(llama, LIMIT_S)
    await running.start()
    yield running
    await running.close()


async def test_hello_is_answered_with_welcome_load_and_the_cache(served: Served) -> None:
    async with session(served) as mine:
        news = [await mine.read(), await mine.read()]
        assert {type(message) for message in news} == {LoadReport, CacheEvents}
        (snapshot,) = [message for message in news if isinstance(message, CacheEvents)]
        assert (snapshot.number, snapshot.is_snapshot) == (1, True)
        assert served.sessions.num_sessions == 1


async def test_a_master_that_missed_something_gets_a_snapshot(served: Served, llama: Node) -> None:
    async with session(served) as mine:
        while not mine.snapshots:
            mine.take(await mine.read())
        await mine.write(whole(1))
        await mine.result(1)
        mine.snapshots.clear()
        await mine.write(SnapshotRequest())
        while not (mine.snapshots and mine.snapshots[-1].is_snapshot):
            mine.take(await mine.read())
        assert set(mine.snapshots[-1].stored) == set(llama.pool.snapshot())


async def test_a_leg_over_the_wire(served: Served, llama: Node) -> None:
    async with session(served) as mine:
        await mine.write(whole(1))
        (outcome,) = await mine.result(1)
        assert outcome.token_ids == (await asyncio.to_thread(llama.run, prompt(20))).token_ids
        assert outcome.failure is None and len(outcome.finish_reasons) == 1


async def test_load_comes_though_nothing_happens(served: Served) -> None:
    async with session(served) as mine:
        while mine.num_loads < 3:
            mine.take(await mine.read())


@pytest.mark.parametrize("first", [Heartbeat(), whole(1), Cancel(1), DecodeHere(1), Drain()])
async def test_what_comes_before_hello_ends_the_session(served: Served, first: ToWorker) -> None:
    async with stream(served) as mine:
        await mine.write(first)
        code, details = await mine.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "hello" in details
    assert served.num_drains == 0


async def test_a_stream_that_says_nothing_before_it_ends(served: Served) -> None:
    async with stream(served) as mine:
        await mine.call.done_writing()
        code, _ = await mine.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_hello_twice_ends_the_session_and_its_work(served: Served, llama: Node) -> None:
    async with session(served) as mine:
        await mine.write(whole(1, sampling=dataclasses.replace(GREEDY, max_tokens=1900)), HELLO)
        code, details = await mine.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "twice" in details
    await asyncio.to_thread(llama.quiesce)


async def test_a_message_of_no_kind_ends_the_session(served: Served) -> None:
    async with session(served) as mine:
        await mine.call.write(wire.ToWorker())
        assert (await mine.status())[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("hello", "word"),
    [
        (dataclasses.replace(HELLO, protocol=PROTOCOL + 1), "session protocol"),
        (dataclasses.replace(HELLO, version="2.0"), "pdserve 2.0"),
    ],
)
async def test_a_master_of_another_version_is_refused(served: Served, hello: Hello, word: str) -> None:
    """R22: it gets the reason, and so does who asks this worker whether it is ready."""
    async with stream(served) as mine:
        await mine.write(hello)
        code, details = await mine.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION and word in details
    refusal = served.sessions.standings.refusal
    assert refusal is not None and word in refusal


async def test_what_a_master_thinks_of_this_worker_is_known(served: Served) -> None:
    """R22, R7"""
    async with session(served) as mine:
        await mine.write(Standing("it serves another model"))
        await until(lambda: served.sessions.standings.refusal == "refused by master master: it serves another model")
        await mine.write(Standing())
        await until(lambda: served.sessions.standings.refusal is None)


async def test_a_master_that_is_back_outlasts_its_former_session(served: Served) -> None:
    """R22: what it thinks of this worker was said on the new one."""
    served.sessions.standings.refuse("another", "other version")
    async with session(served) as back:
        async with session(served):
            await back.write(Standing())
            await until(lambda: served.sessions.standings.refusal is None)
        await until(lambda: served.sessions.num_sessions == 1)
        assert served.sessions.standings.refusal is None
    await until(lambda: served.sessions.standings.refusal == "refused by master another: other version")


async def test_a_worker_proves_that_it_knows_the_secret(llama: Node) -> None:
    """R22"""
    served = Served(llama, LIMIT_S, keys=Keys(["new", "swordfish"]))
    await served.start()
    async with stream(served, metadata=(("authorization", "Bearer swordfish"),)) as mine:
        await mine.write(HELLO)
        welcome = await mine.read()
        assert isinstance(welcome, Welcome)
        assert is_proof(welcome.proof, "swordfish", HELLO.nonce)
    await served.close()


async def test_a_session_that_ends_while_its_welcome_is_written_ends_in_order(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A7: gRPC can't end a call beside a write."""
    for _ in range(50):
        async with stream(served) as mine:
            await mine.write(HELLO)
            await mine.call.write(wire.ToWorker())
            assert (await mine.status())[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert [record for record in caplog.records if "cygrpc" in record.name or record.exc_info] == []


async def test_two_masters_get_only_their_own(served: Served, llama: Node) -> None:
    async with session(served) as one, session(served) as two:
        await one.write(whole(1, 20), whole(2, 21))
        await two.write(whole(1, 22), whole(3, 23))
        mine, theirs = await one.result(1, 2), await two.result(1, 3)
        assert set(one.outcomes) == {1, 2} and set(two.outcomes) == {1, 3}
        for length, outcome in zip((20, 21, 22, 23), (*mine, *theirs), strict=True):
            assert outcome.token_ids == (await asyncio.to_thread(llama.run, prompt(length))).token_ids


async def test_cancel_and_decode_here_arrive(served: Served, llama: Node) -> None:
    async with session(served) as mine:
        long = dataclasses.replace(GREEDY, max_tokens=1900)
        handed_off = dataclasses.replace(whole(2), stage=Stage.PREFILL)
        await mine.write(whole(1, sampling=long), Cancel(1), handed_off, DecodeHere(2))
        cancelled, decoded = await mine.result(1, 2)
        assert cancelled.finish_reasons == {}
        assert len(decoded.token_ids[0]) == 20
    await asyncio.to_thread(llama.quiesce)


async def test_drain_is_passed_on(served: Served) -> None:
    async with session(served) as mine:
        await mine.write(Drain())
        await until(lambda: served.num_drains == 1)


@pytest.mark.parametrize(
    "nonsense",
    [
        dataclasses.replace(whole(1), prompt_ids=()),
        dataclasses.replace(whole(1), prompt_ids=(2**32 - 1,)),
        dataclasses.replace(whole(1), sequences=()),
        dataclasses.replace(whole(1), sequences=(1, 1)),
        dataclasses.replace(whole(1), stage=Stage.DECODE),
        dataclasses.replace(whole(1), time_limit_s=float("nan")),
        whole(1, sampling=SamplingParams(max_tokens=0)),
        whole(1, sampling=SamplingParams(temperature=float("nan"))),
        whole(1, sampling=SamplingParams(logit_bias={2**32 - 1: 1.0})),
        whole(1, sampling=SamplingParams(bad_words_ids=((2**32 - 1,),))),
    ],
)
async def test_a_start_that_makes_no_sense_fails_alone(served: Served, nonsense: Start) -> None:
    async with session(served) as mine:
        await mine.write(whole(7), nonsense, whole(8))
        before, refused, after = await mine.result(7, 1, 8)
        assert refused.failure is not None and refused.failure.code is ErrorCode.INVALID_ARGUMENT
        assert before.token_ids == after.token_ids and before.failure is after.failure is None


async def test_a_silent_master_is_dropped_and_its_work_with_it(llama: Node) -> None:
    served = Served(llama, SILENCE_S)
    await served.start()
    async with session(served) as mine, stream(served) as mute:
        await mine.write(dataclasses.replace(whole(1), stage=Stage.PREFILL))
        for silent in (mine, mute):
            code, details = await silent.status()
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED and "silent" in details
    await asyncio.to_thread(llama.quiesce)
    await served.close()


async def test_a_master_whose_loop_stands_still_keeps_its_session_and_a_stopped_one_does_not(llama: Node) -> None:
    """C5: its process answers all the same."""
    served = Served(llama, LIMIT_S, process_silence_s=PROCESS_SILENCE_S)
    await served.start()
    async with busy_master(served.port, 1.5 * PROCESS_SILENCE_S) as busy, busy_master(served.port, LIMIT_S) as stopped:
        assert busy.stdout is not None and stopped.stdout is not None
        assert await busy.stdout.readline() == await stopped.stdout.readline() == b"connected\n"
        stopped.send_signal(signal.SIGSTOP)
        assert await busy.stdout.readline() == b"served\n"
        await until(lambda: served.sessions.num_sessions == 0)
    await served.close()


async def test_heartbeats_keep_a_session_alive(llama: Node) -> None:
    served = Served(llama, SILENCE_S)
    await served.start()
    async with session(served) as mine:
        for _ in range(4):
            await asyncio.sleep(SILENCE_S / 2)
            await mine.write(Heartbeat())
        assert served.sessions.num_sessions == 1
    await served.close()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_the_end_of_a_stream_ends_its_work(served: Served, llama: Node, is_cut: bool) -> None:
    """Cut, or left in order."""
    async with session(served) as mine:
        long = dataclasses.replace(GREEDY, max_tokens=1900)
        await mine.write(whole(1, sampling=long), dataclasses.replace(whole(2), stage=Stage.PREFILL))
        while not isinstance(await mine.read(), Step):
            pass
        if is_cut:
            mine.call.cancel()
        else:
            await mine.call.done_writing()
            assert (await mine.status())[0] is grpc.StatusCode.OK
        await until(lambda: served.sessions.num_sessions == 0)
    await asyncio.to_thread(llama.quiesce)


# A window that never grows, as towards a master whose process is busy.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 14))


def talkative(leg: int) -> Start:
    return whole(leg, sampling=dataclasses.replace(GREEDY, max_tokens=400, logprobs=20))


async def test_what_a_slow_master_does_not_read_coalesces(served: Served, llama: Node) -> None:
    async with session(served, NARROW) as mine:
        before = llama.engine.stats.num_steps
        await mine.write(*(talkative(number) for number in range(4)))
        await until(lambda: llama.engine.stats.num_steps > before + 100 and llama.legs.num_unreleased == 0)
        num_steps = llama.engine.stats.num_steps - before
        outcomes = await mine.result(0, 1, 2, 3)
        for outcome in outcomes:
            assert len(outcome.token_ids[0]) == len(outcome.logprobs[0]) == 400
        assert mine.num_steps < num_steps / 2


async def test_a_master_that_neither_reads_nor_writes_is_dropped(llama: Node) -> None:
    """The worker waits to write to it, and must notice all the same."""
    served = Served(llama, SILENCE_S)
    await served.start()
    async with session(served, NARROW) as mine:
        await mine.write(*(talkative(number) for number in range(4)))
        await until(lambda: served.sessions.num_sessions == 0)
        await asyncio.to_thread(llama.quiesce)
        mine.call.cancel()
    await served.close()


@asynccontextmanager
async def faulty_session(llama: Node, *texts: str) -> AsyncIterator[tuple[Served, Session]]:
    served = Served(llama, LIMIT_S, faults=MessageFaults(FaultPoint(Fault.parse(text) for text in texts)))
    await served.start()
    async with session(served) as mine:
        yield served, mine
    await served.close()


async def test_messages_get_lost_when_that_is_asked_for(llama: Node) -> None:
    async with faulty_session(llama, "session.drop@2", "session.drop@3") as (_, mine):
        await mine.write(whole(1))
        while not mine.num_steps:
            mine.take(await mine.read())
        assert mine.snapshots == []  # load and snapshot are the second and the third


async def test_a_session_that_is_cut_at_a_message_leaves_nothing_behind(llama: Node) -> None:
    async with faulty_session(llama, "session.delay=0.001@1+", "session.close@5") as (served, mine):
        await mine.write(whole(1, sampling=dataclasses.replace(GREEDY, max_tokens=500)))
        code, _ = await mine.status()
        assert code is grpc.StatusCode.UNKNOWN
        await until(lambda: served.sessions.num_sessions == 0)
        await asyncio.to_thread(llama.quiesce)
