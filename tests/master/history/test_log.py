"""What a master remembers of the requests that went through its real dispatcher."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Histogram

from master.dispatch.dispatcher import Dispatcher
from master.errors import ServingError
from master.history.percentiles import Percentiles, percentiles
from master.history.record import Outcome
from master.history.samples import ITL, Samples
from master.text.tokenizer import load_tokenizer
from protos.sampling_messages import FinishReason
from protos.session_messages import ErrorCode, Failure, Role, Start
from tests.master.dispatch.test_dispatcher import collect, request
from tests.scripted_worker import Fleet, fleet_of


def samples_of(fleet: Fleet, dispatcher: Dispatcher, registry: CollectorRegistry | None = None) -> Samples:
    return Samples(dispatcher.log, registry or CollectorRegistry(), fleet.workers.received_bytes)


async def test_a_retried_request_shows_both_attempts_and_nothing_of_its_text(tiny_llama: Path) -> None:
    async with fleet_of(Role.PREFILL, Role.PREFILL, Role.DECODE) as (fleet, (*prefills, decode)):
        dispatcher = Dispatcher(fleet.parts(), load_tokenizer(tiny_llama))
        samples = samples_of(fleet, dispatcher)
        collecting = asyncio.create_task(collect(dispatcher.generate(request())))
        hearing = [asyncio.create_task(worker.hear(Start)) for worker in prefills]
        done, _ = await asyncio.wait(hearing, return_when=asyncio.FIRST_COMPLETED)
        first, second = prefills if hearing[0] in done else prefills[::-1]
        first.fails(done.pop().result(), Failure(ErrorCode.INTERNAL, "no"))
        start = await hearing[prefills.index(second)]
        second.begins(start, cached_tokens=2)
        pull = await decode.hear(Start)
        assert dispatcher.log.find("req-1")[0].outcome is None  # it runs
        second.prefills(start, 30)
        decode.receives(pull, 30)
        decode.emits(pull, 1, 31, finish=FinishReason.LENGTH)
        await collecting
        (record,) = dispatcher.log.find("chatcmpl-req-1")
        assert (record.outcome, record.timeline.attempts, record.cached_tokens) == (Outcome.FINISHED, 2, 2)
        attempts = [span for span in record.spans if span.name == "attempt"]
        assert [(span.attempt, span.instance) for span in attempts] == [(1, first.address), (2, second.address)]
        assert (attempts[0].detail, attempts[1].detail) == (f"{first.address}: engine", "")
        names = {span.name: span.instance for span in record.spans if span.attempt == 2}
        assert names["prefill"] == second.address and names["transfer"] == names["decode"] == decode.address
        assert not {"prompt_ids", "output_ids", "text"} & set(json.loads(msgspec.json.encode(record)))
        for expected in ((1, 2, True), (0, 0, False)):
            samples.take()
            sample = samples.ring[-1]
            assert (sample.ended, sample.tokens, sample.ttft_s is not None) == expected


async def test_messages_that_may_repeat_the_prompt_are_not_kept(tiny_llama: Path) -> None:
    cases = [(ErrorCode.INVALID_ARGUMENT, Outcome.REFUSED, ""), (ErrorCode.DEADLINE_EXCEEDED, Outcome.FAILED, "late")]
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = Dispatcher(fleet.parts(), load_tokenizer(tiny_llama))
        for code, outcome, message in cases:
            collecting = asyncio.create_task(collect(dispatcher.generate(replace(request(), id=code.value))))
            mix.fails(await mix.hear_another_start(), Failure(code, "late"))
            with pytest.raises(ServingError):
                await collecting
            (record,) = dispatcher.log.find(code.value)
            assert (record.outcome, record.message) == (outcome, message)
        assert [record.id for record in dispatcher.log.failed] == [code.value for code, _, _ in cases]
        assert (dispatcher.log.num_running, dispatcher.log.num_tokens) == (0, 0)


async def test_gaps_between_tokens_are_those_of_the_latest_interval(tiny_llama: Path) -> None:
    registry = CollectorRegistry()
    itl = Histogram(ITL, "gaps", ["endpoint"], registry=registry, buckets=(0.1, 0.2, 0.4))
    async with fleet_of(Role.MIX) as (fleet, _):
        samples = samples_of(fleet, Dispatcher(fleet.parts(), load_tokenizer(tiny_llama)), registry)
        for gaps, expected in (([0.05] * 99, 0.05), ([0.3] * 10, 0.3), ([5.0], 0.4), ([], None)):
            for gap in gaps:
                itl.labels("/v1/completions").observe(gap)
            samples.take()
            shown = samples.ring[-1].itl_s
            median = None if shown is None else shown.p50
            assert median == (None if expected is None else pytest.approx(expected, 0.1))


def test_percentiles_are_linear_between_order_statistics() -> None:
    assert percentiles([]) is None
    assert percentiles([4.0]) == Percentiles(4.0, 4.0, 4.0)
    shown = percentiles([float(number) for number in range(101)])
    assert shown == Percentiles(50.0, 95.0, 99.0)
