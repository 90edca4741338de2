"""Cancelling by id: whose request ends, what workers are told, and when it counts as done."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from master.dispatch import dispatcher as dispatcher_module
from master.dispatch.dispatcher import Dispatcher
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput
from master.request import GenerationRequest
from master.text.tokenizer import Tokenizer, load_tokenizer
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_messages import Cancel, Role, Start
from tests.scripted_worker import PATIENCE_S, Fleet, ScriptedWorker, fleet_of, soon


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


class Stream:
    """A client that takes outputs as they come."""

    def __init__(self, outputs: AsyncGenerator[GenerationOutput, None]) -> None:
        self.taken: list[GenerationOutput] = []
        self._task = asyncio.create_task(self._take(outputs))

    async def _take(self, outputs: AsyncGenerator[GenerationOutput, None]) -> None:
        async for output in outputs:
            self.taken.append(output)

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def error(self) -> ServingError:
        with pytest.raises(ServingError) as caught:
            await asyncio.wait_for(self._task, PATIENCE_S)
        return caught.value

    async def end(self) -> None:
        await asyncio.wait_for(self._task, PATIENCE_S)


class Master:
    """A dispatcher over one MIX worker or a prefill and a decode worker."""

    def __init__(self, fleet: Fleet, workers: list[ScriptedWorker], tokenizer: Tokenizer) -> None:
        self.dispatcher = Dispatcher(fleet.parts(), tokenizer)
        self.workers = workers

    def request(self, request_id: str, answer_id: str | None = None) -> GenerationRequest:
        sampling = SamplingParams(max_tokens=32)
        request = GenerationRequest(request_id, "tiny", tuple(range(10, 20)), sampling, time.monotonic(), 30.0)
        return replace(request, answer_id=answer_id)

    def stream(self, request_id: str, answer_id: str | None = None) -> Stream:
        return Stream(self.dispatcher.generate(self.request(request_id, answer_id)))

    async def begun(self, request_id: str, answer_id: str | None = None) -> tuple[Stream, list[Start]]:
        """Decoding, on one worker or two; one token has come."""
        stream = self.stream(request_id, answer_id)
        starts = []
        for worker in self.workers:
            starts.append(await worker.hear(Start))
            worker.begins(starts[-1])
        if len(starts) == 1:
            self.workers[0].emits(starts[0], 0, 300)
        else:
            self.workers[0].prefills(starts[0], 300)
        await soon(lambda: len(stream.taken) == 1)
        return stream, starts


@asynccontextmanager
async def master_of(tokenizer: Tokenizer, *roles: Role) -> AsyncIterator[Master]:
    async with fleet_of(*roles) as (fleet, workers):
        yield Master(fleet, workers, tokenizer)


async def test_it_is_done_when_every_worker_has_let_go(tokenizer: Tokenizer) -> None:
    async with master_of(tokenizer, Role.PREFILL, Role.DECODE) as master:
        stream, starts = await master.begun("req-1", "chatcmpl-req-1")
        cancelling = asyncio.create_task(master.dispatcher.cancel("chatcmpl-req-1"))
        for worker, start in zip(master.workers, starts, strict=True):
            assert await worker.hear(Cancel) == Cancel(start.leg)
        assert (await stream.error()).kind is ErrorKind.CANCELLED
        for worker, start in zip(master.workers, starts, strict=True):
            assert not cancelling.done()
            worker.update(start, ended=True)
            await asyncio.sleep(0)
        await asyncio.wait_for(cancelling, PATIENCE_S)
        assert master.dispatcher.num_in_flight == 0


async def test_only_exactly_this_id_is_cancelled(tokenizer: Tokenizer) -> None:
    """Case K2."""
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        first, (first_start,) = await master.begun("req-1", "chatcmpl-req-1")
        second, (second_start,) = await master.begun("req-10", "chatcmpl-req-10")
        for wrong in ("", "req", "req-", "req-100", "chatcmpl-req-", "REQ-1"):
            with pytest.raises(ServingError) as caught:
                await master.dispatcher.cancel(wrong)
            assert caught.value.kind is ErrorKind.NOT_FOUND
        cancelling = asyncio.create_task(master.dispatcher.cancel("req-1"))
        assert await mix.hear(Cancel) == Cancel(first_start.leg)
        mix.update(first_start, ended=True)
        await cancelling
        assert (await first.error()).kind is ErrorKind.CANCELLED
        mix.emits(second_start, 1, 301, finish=FinishReason.LENGTH)
        await second.end()
        assert not mix.has_heard


async def test_a_name_is_its_clients_alone(tokenizer: Tokenizer) -> None:
    """R41: before its first token, by the name its client gave it, and by nobody else's."""
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        streams = {}
        for number, client in enumerate(("ann", "bob")):
            request = replace(master.request(f"req-{number}"), client=client, name="mine")
            streams[client] = Stream(master.dispatcher.generate(request))
        starts = [await mix.hear(Start), await mix.hear(Start)]
        for stranger in ("", "eve"):
            with pytest.raises(ServingError) as caught:
                await master.dispatcher.cancel("mine", stranger)
            assert caught.value.kind is ErrorKind.NOT_FOUND
        cancelling = asyncio.create_task(master.dispatcher.cancel("mine", "ann"))
        assert await mix.hear(Cancel) == Cancel(starts[0].leg)
        mix.update(starts[0], ended=True)
        await cancelling
        assert (await streams["ann"].error()).kind is ErrorKind.CANCELLED
        mix.emits(starts[1], 0, 300, finish=FinishReason.LENGTH)
        await streams["bob"].end()


async def test_all_prompts_of_an_answer_are_cancelled_together(tokenizer: Tokenizer) -> None:
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        streams, starts = [], []
        for number in range(3):
            stream, (start,) = await master.begun(f"req-{number}", "cmpl-req-0")
            streams.append(stream)
            starts.append(start)
        mix.emits(starts[0], 1, 301, finish=FinishReason.LENGTH)  # the one the answer is named after
        await streams[0].end()
        cancelling = asyncio.create_task(master.dispatcher.cancel("cmpl-req-0"))
        cancelled = {(await mix.hear(Cancel)).leg for _ in range(2)}
        assert cancelled == {start.leg for start in starts[1:]}
        for start in starts[1:]:
            mix.update(start, ended=True)
        await asyncio.wait_for(cancelling, PATIENCE_S)
        for stream in streams[1:]:
            assert (await stream.error()).kind is ErrorKind.CANCELLED


async def test_twice_at_once_is_once(tokenizer: Tokenizer) -> None:
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        stream, (start,) = await master.begun("req-1")
        cancelling = asyncio.gather(master.dispatcher.cancel("req-1"), master.dispatcher.cancel("req-1"))
        await mix.hear(Cancel)
        mix.update(start, ended=True)
        await asyncio.wait_for(cancelling, PATIENCE_S)
        assert (await stream.error()).kind is ErrorKind.CANCELLED
        assert not mix.has_heard
        with pytest.raises(ServingError) as caught:
            await master.dispatcher.cancel("req-1")
        assert caught.value.kind is ErrorKind.NOT_FOUND


async def test_workers_are_freed_though_the_client_takes_nothing(tokenizer: Tokenizer) -> None:
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        outputs = master.dispatcher.generate(master.request("req-1"))
        taking = asyncio.create_task(anext(outputs))
        start = await mix.hear(Start)
        mix.begins(start)
        mix.emits(start, 0, 300)
        await taking
        cancelling = asyncio.create_task(master.dispatcher.cancel("req-1"))
        assert await mix.hear(Cancel) == Cancel(start.leg)
        mix.update(start, ended=True)
        with pytest.raises(ServingError) as caught:
            await anext(outputs)
        assert caught.value.kind is ErrorKind.CANCELLED
        await asyncio.wait_for(cancelling, PATIENCE_S)


async def test_a_worker_that_is_lost_holds_nothing_of_ours(tokenizer: Tokenizer) -> None:
    async with master_of(tokenizer, Role.MIX) as master:
        (mix,) = master.workers
        stream, _ = await master.begun("req-1")
        cancelling = asyncio.create_task(master.dispatcher.cancel("req-1"))
        await mix.hear(Cancel)
        assert not cancelling.done()
        await mix.die()
        await asyncio.wait_for(cancelling, PATIENCE_S)
        assert (await stream.error()).kind is ErrorKind.CANCELLED


async def test_what_is_not_confirmed_in_time_is_said(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "CANCEL_TIMEOUT_S", 0.05)
    async with master_of(tokenizer, Role.PREFILL, Role.DECODE) as master:
        stream, starts = await master.begun("req-1")
        cancelling = asyncio.create_task(master.dispatcher.cancel("req-1"))
        await master.workers[0].hear(Cancel)
        master.workers[0].update(starts[0], ended=True)
        with pytest.raises(ServingError, match=master.workers[1].address) as caught:
            await cancelling
        assert caught.value.kind is ErrorKind.DEADLINE_EXCEEDED
        assert (await stream.error()).kind is ErrorKind.CANCELLED
