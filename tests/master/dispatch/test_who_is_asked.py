"""Who may be asked, and when: sick workers, cut pairs, full queues, missing roles, requests that kill."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest

from master.dispatch.flags import DispatchFlags
from master.dispatch.parts import DispatchParts
from master.dispatch.request_run import RequestRun
from master.edge.http.errors import error_headers
from master.errors import WORKERS_LOST, ErrorKind, ServingError
from master.request import GenerationRequest
from master.routing.circuit import FAILURES_IN_A_ROW, CircuitState
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_messages import Cancel, DecodeHere, ErrorCode, Failure, LoadReport, Role, Stage, Start
from tests.scripted_worker import Fleet, ScriptedWorker, finished, fleet_of, soon

PROMPT = tuple(range(10, 20))
STOP = FinishReason.STOP
BROKEN = Failure(ErrorCode.INTERNAL, "the step raised")
FULL = Failure(ErrorCode.RESOURCE_EXHAUSTED, "full")
CUT = Failure(ErrorCode.PEER_UNREACHABLE, "no connection")
TORN = Failure(ErrorCode.TRANSFER_FAILED, "nobody took the KV")


class Asked:
    """A request that runs."""

    def __init__(self, parts: DispatchParts, name: str = "req-1", *, max_tokens: int = 8) -> None:
        request = GenerationRequest(name, "tiny", PROMPT, SamplingParams(max_tokens=max_tokens), time.monotonic(), 60.0)
        self.run = RequestRun(request, parts)
        self.task = asyncio.create_task(self.run.run())

    @property
    def token_ids(self) -> list[int]:
        return self.run.progress.sequences[0].token_ids

    async def error(self) -> ServingError:
        with pytest.raises(ServingError) as caught:
            await self.task
        return caught.value


def num_paid(parts: DispatchParts) -> int:
    return parts.flags.retry_burst - int(parts.budget.left)


def generates(worker: ScriptedWorker, start: Start) -> None:
    worker.begins(start)
    worker.emits(start, len(start.output_ids), 40, 41, finish=STOP)


@contextlib.asynccontextmanager
async def answering(worker: ScriptedWorker, answer: Callable[[ScriptedWorker, Start], None]) -> AsyncIterator[None]:
    """The worker answers every leg in the same way."""

    async def answer_all() -> None:
        while True:
            answer(worker, await worker.hear_another_start())

    task = asyncio.create_task(answer_all())
    try:
        yield
    finally:
        task.cancel()


async def heard_by(*workers: ScriptedWorker) -> ScriptedWorker:
    """The worker that is asked first."""
    await soon(lambda: any(worker.has_heard for worker in workers))
    return next(worker for worker in workers if worker.has_heard)


async def test_a_sick_worker_costs_no_request() -> None:
    """R1: it fails fast and so looks idle; few retries are paid before it is left alone."""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, (sick, sound)):
        parts = fleet.parts()
        async with (
            answering(sick, lambda worker, start: worker.fails(start, BROKEN)),
            answering(sound, generates),
        ):
            for number in range(60):
                some = [Asked(parts, f"req-{number}-{place}") for place in range(4)]
                await asyncio.gather(*(asked.task for asked in some))
                assert all(asked.token_ids == [40, 41] for asked in some)
        assert parts.health.circuit_of(sick.address) is not CircuitState.CLOSED
        assert parts.health.circuit_of(sound.address) is CircuitState.CLOSED
        assert num_paid(parts) < 3, "the failures that open the circuit are the only ones that are paid"


async def test_one_probe_closes_the_circuit_of_a_worker_that_works_again() -> None:
    """R1: with nobody else there, requests wait for the probe."""
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        parts = fleet.parts(DispatchFlags(route_timeout_s=20.0))
        for _ in range(FAILURES_IN_A_ROW):
            parts.health.engine_failed(mix.address, time.monotonic(), "the step raised")
        assert parts.health.circuit_of(mix.address) is CircuitState.OPEN
        assert mix.address in (parts.routes.missing() or "")
        asked = [Asked(parts, f"req-{number}") for number in range(2)]
        start = await mix.hear(Start)
        assert not mix.has_heard, "a single probe"
        generates(mix, start)
        generates(mix, await mix.hear(Start))
        await asyncio.gather(*(one.task for one in asked))
        assert parts.routes.missing() is None


@pytest.mark.parametrize(
    "failure", [Failure(ErrorCode.INVALID_ARGUMENT, "no"), Failure(ErrorCode.DEADLINE_EXCEEDED, "")]
)
async def test_what_clients_get_wrong_opens_no_circuit(failure: Failure) -> None:
    """R1"""
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        parts = fleet.parts()
        for number in range(10):
            asked = Asked(parts, f"req-{number}")
            mix.fails(await mix.hear(Start), failure)
            await asked.error()
        assert parts.health.circuit_of(mix.address) is CircuitState.CLOSED


async def test_a_cut_pair_is_left_out_and_another_decodes() -> None:
    """R2: the KV is still where it was, so nothing is computed again, and nothing is paid."""
    async with fleet_of(Role.PREFILL, Role.DECODE, Role.DECODE) as (fleet, (prefill, one, other)):
        parts = fleet.parts()
        asked = Asked(parts)
        first = await prefill.hear(Start)
        prefill.begins(first)
        cut = await heard_by(one, other)
        sound = other if cut is one else one
        start = await cut.hear(Start)
        cut.begins(start)
        cut.fails(start, CUT)
        second = await sound.hear(Start)
        assert second.kv_handle is not None
        sound.receives(second, 40)
        sound.emits(second, 1, 41, finish=STOP)
        await asked.task
        assert (num_paid(parts), parts.health.cut_pairs) == (0, [(prefill.address, cut.address)])
        for number in range(3):
            again = Asked(parts, f"req-{number}")
            prefill.begins(await prefill.hear_another_start())
            start = await sound.hear(Start)
            sound.receives(start, 40)
            sound.emits(start, 1, 41, finish=STOP)
            await again.task
        assert not cut.has_heard


async def test_the_prefill_worker_of_a_cut_pair_decodes_itself() -> None:
    """R2, with one worker of each role."""
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        parts = fleet.parts()
        for number in range(8):
            asked = Asked(parts, f"req-{number}")
            start = await prefill.hear(Start)
            prefill.begins(start)
            if number == 0:
                decode.fails(await decode.hear(Start), CUT)
            assert await prefill.hear(DecodeHere) == DecodeHere(start.leg)
            prefill.emits(start, 0, 40, 41, finish=STOP)
            await asked.task
            assert asked.token_ids == [40, 41]
        assert num_paid(parts) == 0
        assert not decode.has_heard


async def test_a_pair_that_healed_comes_back() -> None:
    """R2: one request tries it."""
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        parts = fleet.parts()
        parts.health.transfer_failed(prefill.address, decode.address, time.monotonic() - 60.0, "long ago")
        asked = Asked(parts)
        prefill.begins(await prefill.hear(Start))
        start = await decode.hear(Start)
        decode.receives(start, 40)
        decode.emits(start, 1, 41, finish=STOP)
        await asked.task
        assert parts.health.cut_pairs == []


async def test_a_new_request_waits_for_a_role_that_restarts() -> None:
    """R3"""
    async with fleet_of(Role.PREFILL) as (fleet, (prefill,)):
        parts = fleet.parts(DispatchFlags(role_fallback=False))
        asked = Asked(parts)
        await soon(lambda: parts.routes.num_waiting == 1)
        async with ScriptedWorker("late", Role.DECODE) as decode:
            await fleet.join(decode)
            prefill.begins(await prefill.hear(Start))
            start = await decode.hear(Start)
            decode.receives(start, 40)
            decode.emits(start, 1, 41, finish=STOP)
            await asked.task
        assert parts.routes.num_waiting == 0
        assert asked.run.trace.timeline().route_wait_s > 0


async def test_the_wait_is_bounded_in_time_and_number() -> None:
    """R3"""
    async with Fleet() as fleet:
        parts = fleet.parts(DispatchFlags(route_timeout_s=0.2, max_waiting_requests=1))
        first = Asked(parts)
        await soon(lambda: parts.routes.num_waiting == 1)
        error = await Asked(parts, "req-2").error()
        assert (error.kind, error.retry_after_s) == (ErrorKind.UNAVAILABLE, 1)
        assert "wait already" in error.message
        error = await first.error()
        assert (error.kind, error.message) == (ErrorKind.UNAVAILABLE, "no worker is connected")
        assert parts.routes.num_waiting == 0


async def test_a_request_cancelled_while_it_waits_gives_its_place_back() -> None:
    async with Fleet() as fleet:
        parts = fleet.parts()
        asked = Asked(parts)
        await soon(lambda: parts.routes.num_waiting == 1)
        await finished(asked.task)
        assert parts.routes.num_waiting == 0


async def test_the_large_worker_that_is_away_is_waited_for() -> None:
    """R23: 4xx only for what can never work."""
    async with ScriptedWorker("small", Role.MIX, num_blocks=3) as small, Fleet() as fleet:
        await fleet.join(small)
        parts = fleet.parts(DispatchFlags(route_timeout_s=0.1))
        assert (await Asked(parts).error()).kind is ErrorKind.INVALID_REQUEST
        fleet.workers.add_static("127.0.0.1:1")
        assert (await Asked(parts).error()).kind is ErrorKind.UNAVAILABLE


async def test_a_request_that_kills_its_workers_ends_at_the_second() -> None:
    """R5: and those that shared a worker with it go on."""
    async with fleet_of(Role.MIX, Role.MIX, Role.MIX) as (fleet, workers):
        parts = fleet.parts()
        bad = Asked(parts, "req-bad")
        first = await heard_by(*workers)
        first.begins(await first.hear(Start))
        others = [worker for worker in workers if worker is not first]
        await first.die()
        second = await heard_by(*others)
        (third,) = [worker for worker in others if worker is not second]
        start = await second.hear(Start)
        second.begins(start)
        good = Asked(parts, "req-good")
        chosen = await heard_by(second, third)
        begun = await chosen.hear(Start)
        chosen.emits(begun, 0, 40)
        await soon(lambda: good.token_ids == [40])
        await second.die()
        error = await bad.error()
        assert (error.kind, error.code) == (ErrorKind.INTERNAL, WORKERS_LOST)
        assert "two workers" in error.message
        assert error_headers(error) == [(b"x-should-retry", b"false")], "SDKs would send it to two more"
        if chosen is second:
            begun = await third.hear(Start)
        third.emits(begun, 1, 41, finish=STOP)
        await good.task
        assert good.token_ids == [40, 41]


async def test_suspects_run_on_workers_of_their_own() -> None:
    """R5: so that what is lost next is lost to one of them alone."""
    async with fleet_of(Role.MIX, Role.MIX, Role.MIX) as (fleet, (dying, *living)):
        parts = fleet.parts()
        for worker in living:
            worker.say(LoadReport(Role.MIX, queued_prefill_tokens=10_000, available_blocks=100))
        await soon(lambda: sum(view.queued_prefill_tokens > 0 for view in fleet.workers.views()) == 2)
        asked = [Asked(parts, f"req-{number}") for number in range(3)]
        for _ in asked:
            await dying.hear(Start)
        await dying.die()
        starts = {worker: await worker.hear(Start) for worker in living}
        waiting = ({"req-0", "req-1", "req-2"} - {start.request_id for start in starts.values()}).pop()
        assert not any(worker.has_heard for worker in living)
        worker, start = next(iter(starts.items()))
        worker.emits(start, 0, 40, 41, 42)
        assert (await worker.hear(Start)).request_id == waiting
        for one in asked:
            await finished(one.task)


async def test_a_worker_that_drained_is_lost_to_nobody() -> None:
    """R5: rolling restarts end no stream, however often it has to move."""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        parts = fleet.parts()
        asked = Asked(parts)
        for _ in range(4):
            leaving = await heard_by(*workers)
            leaving.begins(await leaving.hear(Start))
            leaving.say(LoadReport(Role.MIX, is_draining=True))
            leaving.hang_up()
            await soon(lambda worker=leaving: worker.num_sessions > 1)  # type: ignore[misc]
            workers = [worker for worker in workers if worker is not leaving] + [leaving]
            leaving.say(LoadReport(Role.MIX, available_blocks=100))
        assert len(parts.suspects) == 0
        await finished(asked.task)


async def test_a_lease_that_ends_counts_against_the_decode_worker() -> None:
    """R6"""
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        parts = fleet.parts()
        asked = Asked(parts)
        first = await prefill.hear(Start)
        prefill.begins(first)
        await decode.hear(Start)
        prefill.fails(first, TORN)
        again = await prefill.hear(Start)
        assert again.stage is Stage.PREFILL, "it is not the prefill worker that is avoided"
        prefill.begins(again)
        await prefill.hear(DecodeHere)
        await decode.hear(Cancel)
        prefill.emits(again, 0, 40, 41, finish=STOP)
        await asked.task


async def test_a_prefill_worker_too_small_to_decode_waits_for_a_decode_worker() -> None:
    """R13"""
    async with (
        ScriptedWorker("small", Role.PREFILL, num_blocks=3) as prefill,
        ScriptedWorker("large", Role.DECODE) as decode,
        Fleet() as fleet,
    ):
        await fleet.join(prefill, decode)
        asked = Asked(fleet.parts())
        prefill.begins(await prefill.hear(Start))
        decode.fails(await decode.hear(Start), FULL)
        again = await decode.hear(Start)
        assert again.stage is Stage.DECODE
        decode.receives(again, 40)
        decode.emits(again, 1, 41, finish=STOP)
        await asked.task
        assert not prefill.has_heard, "it is not told to decode"


async def test_the_next_worker_is_asked_before_a_client_is_refused() -> None:
    """R32, and R16: a full queue costs nothing, and is not asked twice."""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        parts = fleet.parts()
        asked = Asked(parts)
        for _ in workers:
            worker = await heard_by(*workers)
            worker.fails(await worker.hear(Start), FULL)
        error = await asked.error()
        assert (error.kind, error.retry_after_s) == (ErrorKind.OVERLOADED, 1)
        assert num_paid(parts) == 0
        assert not any(worker.has_heard for worker in workers)
        assert all(parts.health.circuit_of(worker.address) is CircuitState.CLOSED for worker in workers)


async def test_a_stream_waits_for_room() -> None:
    """R16: its client can't ask for the rest, so it asks again, with growing pauses."""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        parts = fleet.parts()
        asked = Asked(parts)
        dying = await heard_by(*workers)
        (living,) = [worker for worker in workers if worker is not dying]
        dying.emits(await dying.hear(Start), 0, 40)
        await soon(lambda: asked.token_ids == [40])
        await dying.die()
        for _ in range(3):
            living.fails(await living.hear(Start), FULL)
        living.emits(await living.hear(Start), 1, 41, finish=STOP)
        await asked.task
        assert num_paid(parts) == 0


async def test_any_engine_serves_rather_than_nobody() -> None:
    """R25"""
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        parts = fleet.parts()
        assert parts.routes.missing() is None
        await fleet.leave(prefill)
        asked = Asked(parts)
        start = await decode.hear(Start)
        assert start.stage is Stage.WHOLE
        generates(decode, start)
        await asked.task
        assert parts.routes.missing() is None


@pytest.mark.parametrize(
    ("position", "token_ids"), [(0, (512,)), (1, (40,)), (0, tuple(range(9)))], ids=["vocabulary", "gap", "too many"]
)
async def test_impossible_values_are_the_workers_fault(position: int, token_ids: tuple[int, ...]) -> None:
    """R39"""
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        parts = fleet.parts()
        asked = Asked(parts)
        liar = await heard_by(*workers)
        (honest,) = [worker for worker in workers if worker is not liar]
        liar.emits(await liar.hear(Start), position, *token_ids)
        generates(honest, await honest.hear(Start))
        await asked.task
        assert asked.token_ids == [40, 41]
        assert num_paid(parts) == 1, "its circuit has counted a failure, and one does not open it"
