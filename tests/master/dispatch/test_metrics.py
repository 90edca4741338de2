"""R34: what /metrics says of requests, retries and who may be asked."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from master.dispatch.dispatcher import Dispatcher
from master.dispatch.flags import DispatchFlags
from master.dispatch.parts import dispatch_parts
from master.errors import ServingError
from master.text.tokenizer import Tokenizer, load_tokenizer
from protos.sampling_messages import FinishReason
from protos.session_messages import Cancel, ErrorCode, Failure, Role, Start
from tests.master.dispatch.test_dispatcher import collect, request
from tests.scripted_worker import Fleet, fleet_of, soon


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


class Measured:
    """A dispatcher and what it measures."""

    def __init__(self, fleet: Fleet, tokenizer: Tokenizer) -> None:
        self._registry = CollectorRegistry()
        self.parts = dispatch_parts(fleet.workers, tokenizer.vocab_size, DispatchFlags(), registry=self._registry)
        self.dispatcher = Dispatcher(self.parts, tokenizer)

    def value(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)

    @property
    def text(self) -> str:
        return generate_latest(self._registry).decode()


async def test_requests_are_counted_by_how_they_ended(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        measured = Measured(fleet, tokenizer)
        collecting = asyncio.create_task(collect(measured.dispatcher.generate(request())))
        mix.emits(await mix.hear(Start), 0, 30, finish=FinishReason.LENGTH)
        await collecting
        outputs = measured.dispatcher.generate(request())
        first = asyncio.create_task(anext(outputs))
        mix.emits(await mix.hear(Start), 0, 30)
        await first
        await outputs.aclose()
        await mix.hear(Cancel)
        collecting = asyncio.create_task(collect(measured.dispatcher.generate(request())))
        mix.fails(await mix.hear(Start), Failure(ErrorCode.INVALID_ARGUMENT, "no"))
        with pytest.raises(ServingError):
            await collecting
        collecting = asyncio.create_task(collect(measured.dispatcher.generate(replace(request(), id="req-2"))))
        start = await mix.hear(Start)
        cancelling = asyncio.create_task(measured.dispatcher.cancel("req-2"))
        await mix.hear(Cancel)
        mix.update(start, ended=True)
        await cancelling
        with pytest.raises(ServingError):
            await collecting
        for outcome in ("finished", "left", "refused", "cancelled"):
            assert measured.value("pdserve_requests_total", outcome=outcome) == 1.0, outcome
        assert measured.value("pdserve_requests_total", outcome="failed") is None
        assert measured.value("pdserve_requests_by_workers_total", workers="1") == 1.0


async def test_retries_losses_and_the_budget_are_shown(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX, Role.MIX) as (fleet, workers):
        measured = Measured(fleet, tokenizer)
        outputs = measured.dispatcher.generate(request())
        first = asyncio.ensure_future(anext(outputs))
        await soon(lambda: any(worker.has_heard for worker in workers))
        broken, dying = sorted(workers, key=lambda worker: not worker.has_heard)
        broken.fails(await broken.hear(Start), Failure(ErrorCode.INTERNAL, "the step raised"))
        dying.emits(await dying.hear(Start), 0, 30)
        await first
        assert measured.value("pdserve_retry_budget") == 9.0
        collecting = asyncio.create_task(collect(outputs))
        await fleet.leave(dying)
        broken.emits(await broken.hear(Start), 1, 31, finish=FinishReason.LENGTH)
        await collecting
        assert measured.value("pdserve_retries_total", fault="engine") == 1.0
        assert measured.value("pdserve_retries_total", fault="lost") == 1.0
        assert measured.value("pdserve_moved_requests_total") == 1.0
        assert measured.value("pdserve_lost_workers_total") == 1.0
        assert measured.value("pdserve_circuit_state", worker=broken.address) == 0.0


async def test_circuits_and_pairs_are_shown(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.PREFILL, Role.DECODE) as (fleet, (prefill, decode)):
        measured = Measured(fleet, tokenizer)
        for _ in range(3):
            measured.parts.health.engine_failed(decode.address, 0.0, "the step raised")
        measured.parts.health.transfer_failed(prefill.address, decode.address, 0.0, "cut")
        assert measured.value("pdserve_circuit_state", worker=decode.address) == 2.0
        failures = measured.value("pdserve_pair_failures_total", prefill=prefill.address, decode=decode.address)
        assert failures == 1.0
        assert "pdserve_route_wait_seconds_bucket" in measured.text
        assert "pdserve_role_fallbacks_total 0.0" in measured.text
        assert "pdserve_requests_waiting_for_route 0.0" in measured.text
