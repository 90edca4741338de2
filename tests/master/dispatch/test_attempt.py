"""One attempt on scripted workers: who is told what, and what a failure leads to."""

import asyncio
import time

from master.dispatch.request_run import RequestRun
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason, SamplingParams, TokenLogprobs
from protos.session_messages import Cancel, DecodeHere, ErrorCode, Failure, LoadReport, Prefilled, Role, Stage, Start
from tests.scripted_worker import Fleet, ScriptedWorker, finished, fleet_of, soon

PROMPT = tuple(range(10, 20))
FULL = Failure(ErrorCode.RESOURCE_EXHAUSTED, "full")
TORN = Failure(ErrorCode.TRANSFER_FAILED, "torn")
STOP = FinishReason.STOP


def request(n: int = 1, prompt_logprobs: int | None = None) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=8, prompt_logprobs=prompt_logprobs)
    return GenerationRequest("req-1", "tiny", PROMPT, sampling, time.monotonic(), 30.0, n=n)


class Running:
    """A request's attempts, begun."""

    def __init__(self, fleet: Fleet, n: int = 1, prompt_logprobs: int | None = None) -> None:
        self.parts = fleet.parts()
        self.run = RequestRun(request(n, prompt_logprobs), self.parts)
        self.task = asyncio.create_task(self.run.run())

    def token_ids(self, sequence: int = 0) -> list[int]:
        return self.run.progress.sequences[sequence].token_ids

    async def until_token(self, number: int) -> None:
        await soon(lambda: len(self.token_ids()) >= number)

    @property
    def num_paid(self) -> int:
        """Retries that the budget paid for."""
        return self.parts.flags.retry_burst - int(self.parts.budget.left)


async def begin_pair(prefill: ScriptedWorker, decode: ScriptedWorker) -> tuple[Start, Start]:
    """Lets the prefill worker begin, and hears what the decode worker is told."""
    first = await prefill.hear(Start)
    prefill.begins(first)
    return first, await decode.hear(Start)


async def test_prefill_and_decode_share_a_request() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first = await prefill.hear(Start)
        assert (first.stage, first.prompt_ids, first.kv_handle) == (Stage.PREFILL, PROMPT, None)
        assert not decode.has_heard, "the decode worker is chosen only when prefill has begun"
        prefill.begins(first, cached_tokens=4)
        second = await decode.hear(Start)
        assert second.stage is Stage.DECODE
        assert second.kv_handle == b"of leg %d" % first.leg
        prefill.prefills(first, 40)
        await running.until_token(1)
        decode.receives(second, 40)
        decode.emits(second, 1, 41, 42, finish=STOP)
        await running.task
        assert running.token_ids() == [40, 41, 42]
        timeline = running.run.trace.timeline()
        assert (timeline.prefill_instance, timeline.decode_instance) == (prefill.address, decode.address)
        assert (timeline.blocks_sent, timeline.blocks_skipped, timeline.attempts) == (2, 1, 1)
        assert running.run.trace.cached_tokens == 4


async def test_the_prefill_worker_is_let_go_once_its_part_is_done() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        session = fleet.workers.session(prefill.address)
        assert session is not None
        decode.receives(second, 40)
        await running.until_token(1)
        assert session.num_legs == 1, "what prefill has to say is still to come"
        prefill.prefills(first, 40)
        await soon(lambda: session.num_legs == 0)
        assert running.run.trace.timeline().prefill_s == 0.5
        await fleet.leave(prefill)
        decode.emits(second, 1, 41, finish=STOP)
        await running.task
        assert not prefill.has_heard, "it is told nothing more"


async def test_a_request_that_ends_with_its_first_token_is_over() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        prefill.update(first, prefilled=Prefilled(10, 0.1))
        prefill.emits(first, 0, 2, finish=STOP)
        await running.task
        assert running.token_ids() == [2]
        assert await decode.hear(Cancel) == Cancel(second.leg)


async def test_a_refusal_moves_on_to_the_next_decode_worker() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE, Role.DECODE) as (fleet, (prefill, one, other)):
        running = Running(fleet)
        prefill.begins(await prefill.hear(Start))
        await soon(lambda: one.has_heard or other.has_heard)
        refusing, taking = (one, other) if one.has_heard else (other, one)
        refusing.fails(await refusing.hear(Start), FULL)
        second = await taking.hear(Start)
        assert second.kv_handle is not None
        taking.receives(second, 40)
        taking.emits(second, 1, 41, finish=STOP)
        await running.task
        assert running.token_ids() == [40, 41]
        assert running.num_paid == 0


async def test_the_prefill_worker_decodes_when_every_other_refuses() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        decode.fails(second, FULL)
        assert await prefill.hear(DecodeHere) == DecodeHere(first.leg)
        prefill.prefills(first, 40)
        prefill.emits(first, 1, 41, finish=STOP)
        await running.task
        assert running.token_ids() == [40, 41]


async def test_the_prefill_worker_decodes_when_no_other_is_left() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first = await prefill.hear(Start)
        await fleet.leave(decode)
        prefill.begins(first)
        await prefill.hear(DecodeHere)
        prefill.emits(first, 0, 40, finish=STOP)
        await running.task
        assert running.run.trace.attempts == 1


async def test_a_decode_worker_that_dies_may_have_taken_the_kv_so_everything_begins_anew() -> None:
    """Only the prefill worker could say whether it still has it, and if not it would ignore being told to decode."""
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, _ = await begin_pair(prefill, decode)
        prefill.prefills(first, 40)
        await running.until_token(1)
        await decode.die()
        assert await prefill.hear(Cancel) == Cancel(first.leg)
        again = await prefill.hear(Start)
        assert (again.stage, again.output_ids) == (Stage.WHOLE, (40,))
        prefill.begins(again)
        prefill.emits(again, 1, 41, finish=STOP)
        await running.task
        assert running.token_ids() == [40, 41]
        assert running.num_paid == 0
        timeline = running.run.trace.timeline()
        assert timeline.decode_instance == prefill.address, "it was not the dead one that decoded"
        assert timeline.attempts == 2


async def test_a_worker_whose_transfer_failed_does_not_decode_again() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        decode.fails(second, TORN)
        assert await prefill.hear(Cancel) == Cancel(first.leg)
        again = await prefill.hear(Start)
        prefill.begins(again)
        assert await prefill.hear(DecodeHere) == DecodeHere(again.leg)
        prefill.emits(again, 0, 40, finish=STOP)
        await running.task
        assert not decode.has_heard
        assert running.num_paid == 0


async def test_a_dead_prefill_worker_is_no_fault_of_the_request_though_its_transfer_fails_first() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        prefill.prefills(first, 40)
        await running.until_token(1)
        decode.fails(second, TORN)
        await prefill.die()
        again = await decode.hear(Start)
        assert (again.stage, again.output_ids) == (Stage.WHOLE, (40,))
        decode.begins(again)
        decode.emits(again, 1, 41, finish=STOP)
        await running.task
        assert running.token_ids() == [40, 41]
        assert running.num_paid == 0


async def test_the_death_of_the_prefill_worker_is_noticed_before_the_kv_has_moved() -> None:
    async with fleet_of(Role.PREFILL, Role.PREFILL, Role.DECODE) as (fleet, (one, other, decode)):
        running = Running(fleet)
        await soon(lambda: one.has_heard or other.has_heard)
        dying, living = (one, other) if one.has_heard else (other, one)
        first, second = await begin_pair(dying, decode)
        dying.prefills(first, 40)
        await running.until_token(1)
        await dying.die()
        again = await living.hear(Start)
        assert (again.stage, again.output_ids) == (Stage.PREFILL, (40,))
        assert await decode.hear(Cancel) == Cancel(second.leg)
        await finished(running.task)


async def test_prompt_logprobs_survive_a_death_half_way() -> None:
    entries = tuple(TokenLogprobs(token_id, -1.0) for token_id in PROMPT)
    async with fleet_of(Role.PREFILL, Role.PREFILL, Role.DECODE) as (fleet, (one, other, decode)):
        running = Running(fleet, prompt_logprobs=0)
        await soon(lambda: one.has_heard or other.has_heard)
        dying, living = (one, other) if one.has_heard else (other, one)
        first = await dying.hear(Start)
        assert first.sampling.prompt_logprobs == 0
        dying.update(first, prompt_logprobs=entries[:6])
        await soon(lambda: len(running.run.trace.prompt_logprobs) == 6)
        await dying.die()
        again = await living.hear(Start)
        assert again.sampling.prompt_logprobs == 0
        living.begins(again)
        living.update(again, prompt_logprobs=entries[:4])
        living.update(again, prompt_logprobs=entries[4:])
        living.emits(again, 0, 40, finish=STOP)
        await running.task
        assert running.run.trace.take_prompt_logprobs() == entries
        assert decode.name


async def test_a_fast_decode_worker_does_not_outrun_prompt_logprobs() -> None:
    entries = tuple(TokenLogprobs(token_id, -1.0) for token_id in PROMPT)
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet, prompt_logprobs=0)
        first, second = await begin_pair(prefill, decode)
        decode.receives(second, 40)
        decode.emits(second, 1, 41, finish=STOP)
        session = fleet.workers.session(decode.address)
        assert session is not None
        await soon(lambda: session.num_legs == 0)
        prefill.update(first, prompt_logprobs=entries)
        await running.task
        assert running.token_ids() == [40, 41]
        assert running.run.trace.take_prompt_logprobs() == entries


async def test_a_finished_sequence_is_cancelled_where_it_runs() -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        running = Running(fleet, n=2)
        start = await mix.hear(Start)
        assert start.sequences == (0, 1)
        mix.begins(start)
        mix.prefills(start, 40, 50)
        await running.until_token(1)
        running.run.finish_sequence(1)
        assert await mix.hear(Cancel) == Cancel(start.leg, 1)
        mix.emits(start, 1, 41, finish=STOP)
        await running.task


async def test_giving_up_cancels_both_workers() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        running = Running(fleet)
        first, second = await begin_pair(prefill, decode)
        await finished(running.task)
        assert await prefill.hear(Cancel) == Cancel(first.leg)
        assert await decode.hear(Cancel) == Cancel(second.leg)


async def test_a_draining_decode_worker_refuses_and_another_takes_it() -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE, Role.DECODE) as (fleet, (prefill, one, other)):
        running = Running(fleet)
        prefill.begins(await prefill.hear(Start))
        await soon(lambda: one.has_heard or other.has_heard)
        draining, taking = (one, other) if one.has_heard else (other, one)
        draining.say(LoadReport(Role.DECODE, is_draining=True))
        draining.fails(await draining.hear(Start), Failure(ErrorCode.UNAVAILABLE, "draining"))
        second = await taking.hear(Start)
        taking.receives(second, 40)
        taking.emits(second, 1, 41, finish=STOP)
        await running.task
