"""What happens after an attempt failed: to the sequences, to the budget, to the client."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

import pytest

from master.dispatch.flags import DispatchFlags
from master.dispatch.parts import DispatchParts
from master.dispatch.request_run import RequestRun
from master.dispatch.retry_budget import MAX_FAILURES_IN_A_ROW
from master.errors import ErrorKind, ServingError
from master.request import GenerationRequest
from master.routing.suspects import CLEARED_TOKENS
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_messages import ErrorCode, Failure, Role, Stage, Start
from tests.scripted_worker import MODEL, Fleet, ScriptedWorker, fleet_of, soon

PROMPT = tuple(range(10, 20))
STOP = FinishReason.STOP
BROKEN = Failure(ErrorCode.INTERNAL, "the engine broke")


def begin(
    fleet: Fleet,
    parts: DispatchParts | None = None,
    *,
    n: int = 1,
    max_tokens: int = 8,
    time_limit_s: float = 30.0,
    request_id: str = "req-1",
) -> tuple[RequestRun, "asyncio.Task[None]"]:
    request = GenerationRequest(
        request_id, "tiny", PROMPT, SamplingParams(max_tokens=max_tokens), time.monotonic(), time_limit_s, n=n
    )
    run = RequestRun(request, parts or fleet.parts(DispatchFlags(route_timeout_s=0.0)))
    return run, asyncio.create_task(run.run())


def without_budget(fleet: Fleet) -> DispatchParts:
    return fleet.parts(DispatchFlags(retry_burst=0, retry_share=0.0))


def token_ids(run: RequestRun, sequence: int = 0) -> list[int]:
    return run.progress.sequences[sequence].token_ids


async def error_of(task: "asyncio.Task[None]") -> ServingError:
    with pytest.raises(ServingError) as caught:
        await task
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_ARGUMENT, ErrorKind.INVALID_REQUEST),
        (ErrorCode.DEADLINE_EXCEEDED, ErrorKind.DEADLINE_EXCEEDED),
    ],
)
async def test_what_would_fail_again_is_not_tried_again(code: ErrorCode, kind: ErrorKind) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        _, running = begin(fleet)
        mix.fails(await mix.hear(Start), Failure(code, "no"))
        error = await error_of(running)
        assert (error.kind, error.message) == (kind, "no")
        assert not mix.has_heard


async def test_a_broken_engine_is_tried_again_elsewhere() -> None:
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        run, running = begin(fleet)
        await soon(lambda: any(worker.has_heard for worker in workers))
        broken, sound = sorted(workers, key=lambda worker: not worker.has_heard)
        broken.fails(await broken.hear(Start), BROKEN)
        again = await sound.hear(Start)
        sound.emits(again, 0, 40, finish=STOP)
        await running
        assert token_ids(run) == [40]


async def test_failures_in_a_row_reach_the_client_as_what_they_are() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        _, running = begin(fleet)
        for _ in range(MAX_FAILURES_IN_A_ROW):
            mix.fails(await mix.hear(Start), BROKEN)
        error = await error_of(running)
        assert (error.kind, error.message) == (ErrorKind.INTERNAL, "the engine broke")


async def test_a_used_up_budget_ends_it_at_once() -> None:
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        _, running = begin(fleet, without_budget(fleet))
        await soon(lambda: any(worker.has_heard for worker in workers))
        chosen = next(worker for worker in workers if worker.has_heard)
        chosen.fails(await chosen.hear(Start), BROKEN)
        error = await error_of(running)
        assert (error.kind, error.message) == (ErrorKind.INTERNAL, "the engine broke")


async def test_lost_workers_cost_no_budget_and_a_stream_outlives_many_of_them() -> None:
    """R5: a few tokens after each loss show that it is not the request that kills them."""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        run, running = begin(fleet, without_budget(fleet), max_tokens=50)
        living = list(workers)
        for number in range(MAX_FAILURES_IN_A_ROW + 3):
            await soon(lambda: any(worker.has_heard for worker in living))
            dying = next(worker for worker in living if worker.has_heard)
            start = await dying.hear(Start)
            known = tuple(range(number * CLEARED_TOKENS))
            assert start.output_ids == known
            dying.emits(start, len(known), *range(len(known), len(known) + CLEARED_TOKENS))
            await soon(lambda n=number: len(token_ids(run)) == (n + 1) * CLEARED_TOKENS)  # type: ignore[misc]
            await fleet.leave(dying)
            successor = await dying.successor().__aenter__()
            living[living.index(dying)] = successor
            await fleet.until(lambda w=successor: w.address in fleet.usable)  # type: ignore[misc]
        await soon(lambda: any(worker.has_heard for worker in living))
        last = next(worker for worker in living if worker.has_heard)
        start = await last.hear(Start)
        last.emits(start, len(start.output_ids), 99, finish=STOP)
        await running
        assert token_ids(run) == [*range((MAX_FAILURES_IN_A_ROW + 3) * CLEARED_TOKENS), 99]
        for worker in living:
            await worker.die()


async def test_sequences_that_stand_apart_go_on_apart() -> None:
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        run, running = begin(fleet, n=3)
        await soon(lambda: any(worker.has_heard for worker in workers))
        dying, living = sorted(workers, key=lambda worker: not worker.has_heard)
        start = await dying.hear(Start)
        assert start.sequences == (0, 1, 2)
        dying.emits(start, 0, 1, finish=STOP, sequence=0)
        dying.emits(start, 0, 2, sequence=1)
        await soon(lambda: len(token_ids(run, 1)) == 1)
        await dying.die()
        starts = {start.sequences: start for start in [await living.hear(Start), await living.hear(Start)]}
        assert {sequences: start.output_ids for sequences, start in starts.items()} == {(1,): (2,), (2,): ()}
        living.emits(starts[1,], 1, 3, finish=STOP, sequence=1)
        living.emits(starts[2,], 0, 4, finish=STOP, sequence=2)
        await running
        assert [token_ids(run, index) for index in range(3)] == [[1], [2, 3], [4]]


async def test_the_time_limit_ends_it() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        _, running = begin(fleet, time_limit_s=0.2)
        start = await mix.hear(Start)
        assert 0 < start.time_limit_s <= 0.2
        error = await error_of(running)
        assert error.kind is ErrorKind.DEADLINE_EXCEEDED
        assert "0.2 s" in error.message


async def test_no_worker_is_said_at_once() -> None:
    async with Fleet() as fleet:
        _, running = begin(fleet)
        error = await error_of(running)
        assert (error.kind, error.retry_after_s) == (ErrorKind.UNAVAILABLE, 1)


async def test_a_request_that_fits_no_worker_is_the_clients_mistake() -> None:
    async with fleet_of(Role.MIX) as (fleet, _):
        _, running = begin(fleet, max_tokens=900)
        error = await error_of(running)
        assert (error.kind, error.field) == (ErrorKind.INVALID_REQUEST, "max_tokens")


async def test_what_has_begun_goes_on_wherever_there_is_a_worker() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        run, running = begin(fleet)
        prefill.begins(await prefill.hear(Start))
        await decode.hear(Start)
        await prefill.die()
        again = await decode.hear_another_start()
        assert again.stage is Stage.WHOLE
        decode.emits(again, 0, 40, finish=STOP)
        await running
        assert token_ids(run) == [40]


async def test_what_has_begun_waits_for_its_only_worker_to_come_back() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        run, running = begin(fleet)
        mix.emits(await mix.hear(Start), 0, 40)
        await soon(lambda: token_ids(run) == [40])
        await fleet.leave(mix)
        async with mix.successor() as again:
            start = await again.hear(Start)
            assert start.output_ids == (40,)
            again.emits(start, 1, 41, finish=STOP)
            await running
        assert token_ids(run) == [40, 41]


async def test_an_answer_is_never_of_two_models() -> None:
    """R7: in a rolling upgrade to other weights the cluster changes over while the request runs."""
    async with fleet_of(Role.MIX) as (fleet, (old,)), other_workers() as others:
        parts = fleet.parts()
        run, running = begin(fleet, parts)
        _, fresh = begin(fleet, parts, request_id="req-2")
        starts = {start.request_id: start for start in (await old.hear(Start), await old.hear(Start))}
        old.emits(starts["req-1"], 0, 40)
        await soon(lambda: token_ids(run) == [40])
        await fleet.join(*others)
        await old.die()
        await soon(lambda: any(worker.has_heard for worker in others))
        moved = next(worker for worker in others if worker.has_heard)
        start = await moved.hear(Start)
        assert start.request_id == "req-2", "only what had no token yet"
        moved.emits(start, 0, 7, finish=STOP)
        await fresh
        async with old.successor() as again:
            start = await again.hear(Start)
            assert (start.request_id, start.output_ids) == ("req-1", (40,))
            again.emits(start, 1, 41, finish=STOP)
            await running
        assert token_ids(run) == [40, 41]
        assert not any(worker.has_heard for worker in others)


@contextlib.asynccontextmanager
async def other_workers() -> AsyncIterator[list[ScriptedWorker]]:
    model = dataclasses.replace(MODEL, weights_digest="77")
    async with (
        ScriptedWorker("other-0", Role.MIX, model=model) as first,
        ScriptedWorker("other-1", Role.MIX, model=model) as second,
    ):
        yield [first, second]


async def test_the_last_worker_lost_is_the_clients_to_know() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        _, running = begin(fleet, fleet.parts(DispatchFlags(resume_timeout_s=0.1)))
        await mix.hear(Start)
        await mix.die()
        error = await error_of(running)
        assert (error.kind, error.message) == (ErrorKind.UNAVAILABLE, "no worker is connected")


async def test_only_workers_that_are_too_small_are_left() -> None:
    """It was fine when it came, so it is not the client's mistake."""
    async with ScriptedWorker("small", Role.MIX, num_blocks=3) as small, fleet_of(Role.MIX) as (fleet, (mix,)):
        await fleet.join(small)
        _, running = begin(fleet, fleet.parts(DispatchFlags(resume_timeout_s=0.1)))
        await mix.hear(Start)
        await mix.die()
        error = await error_of(running)
        assert error.kind is ErrorKind.UNAVAILABLE
        assert "18 tokens" in error.message


async def test_cancelling_while_sequences_fail_ends_it() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        _, running = begin(fleet, n=2)
        await mix.hear(Start)
        dying = asyncio.create_task(ScriptedWorker.die(mix))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.done()
        await dying


async def test_the_only_worker_is_not_asked_again_at_once_when_it_leaves() -> None:
    """R16: it says so with its next report, and until then a request would go to and fro."""
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        run, running = begin(fleet)
        for _ in range(3):
            mix.fails(await mix.hear(Start), Failure(ErrorCode.UNAVAILABLE, "draining"))
        mix.emits(await mix.hear(Start), 0, 40, finish=STOP)
        await running
        assert run.trace.attempts == 4
        assert run.trace.timeline().retry_s > 0.6, "a tenth, two and four tenths of a second"
