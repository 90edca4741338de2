"""One request's life as its edge sees it: real tokenizer, real sessions, scripted workers."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from master.dispatch.dispatcher import Dispatcher
from master.dispatch.flags import DispatchFlags
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput
from master.request import GenerationRequest
from master.text.stop_strings import StopStrings
from master.text.tokenizer import Tokenizer, load_tokenizer
from protos.sampling_messages import FinishReason, SamplingParams, TokenLogprobs
from protos.session_messages import Cancel, ErrorCode, Failure, Role, Start
from tests.checkpoints import END
from tests.scripted_worker import Fleet, fleet_of, soon

PROMPT = tuple(range(10, 20))
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def request(
    n: int = 1,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    min_tokens: int = 0,
    prompt_logprobs: int | None = None,
) -> GenerationRequest:
    sampling = SamplingParams(
        max_tokens=32, min_tokens=min_tokens, prompt_logprobs=prompt_logprobs, stop_token_ids=(END,)
    )
    return GenerationRequest(
        "req-1", "tiny", PROMPT, sampling, time.monotonic(), 30.0, n=n, stop=stop, include_stop=include_stop
    )


def dispatcher_of(fleet: Fleet, tokenizer: Tokenizer, max_requests: int = 10) -> Dispatcher:
    return Dispatcher(fleet.parts(DispatchFlags(max_requests=max_requests)), tokenizer)


async def collect(outputs: AsyncGenerator[GenerationOutput, None]) -> list[GenerationOutput]:
    return [output async for output in outputs]


def text_of(outputs: list[GenerationOutput], index: int = 0) -> str:
    return "".join(choice.text for output in outputs for choice in output.deltas if choice.index == index)


def ids_of(outputs: list[GenerationOutput], index: int = 0) -> list[int]:
    return [id_ for output in outputs for choice in output.deltas if choice.index == index for id_ in choice.token_ids]


async def test_text_ids_usage_and_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The prefill worker 你好🙂", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        collecting = asyncio.create_task(collect(dispatcher.generate(request())))
        start = await mix.hear(Start)
        mix.begins(start, cached_tokens=4)
        for position, token_id in enumerate(ids):
            is_last = position == len(ids) - 1
            mix.emits(start, position, token_id, finish=LENGTH if is_last else None)
        outputs = await collecting
    assert text_of(outputs) == "The prefill worker 你好🙂"
    assert ids_of(outputs) == ids
    assert [choice.finish_reason for output in outputs for choice in output.deltas][-1] is LENGTH
    assert [output.usage is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    usage = outputs[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (10, len(ids), 4)
    assert {output.cached_tokens for output in outputs} == {4}  # A5: known from the first token on
    assert dispatcher.num_in_flight == 0


async def test_a_stop_string_ends_the_text_and_the_work(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three four", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        collecting = asyncio.create_task(collect(dispatcher.generate(request(stop=(" thr",)))))
        start = await mix.hear(Start)
        for position, token_id in enumerate(ids):
            mix.emits(start, position, token_id)
        outputs = await collecting
        cancel = await mix.hear(Cancel)
    assert cancel.leg == start.leg
    assert text_of(outputs) == "one two"
    last = outputs[-1].deltas[-1]
    assert (last.finish_reason, last.matched_stop) == (STOP, " thr")
    usage = outputs[-1].usage
    assert usage is not None
    assert usage.completion_tokens == len(ids_of(outputs)) < len(ids)
    assert dispatcher.num_in_flight == 0


async def test_the_stop_token_counts_but_is_no_text(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_ids
    ids = tokenizer.encode("one two", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        collecting = asyncio.create_task(collect(dispatcher_of(fleet, tokenizer).generate(request())))
        mix.emits(await mix.hear(Start), 0, *ids, eos, finish=STOP)
        (output,) = await collecting
    (choice,) = output.deltas
    assert (choice.text, choice.matched_stop) == ("one two", eos)
    assert choice.token_ids == (*ids, eos)


async def test_the_last_token_of_a_complete_grammar_is_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        collecting = asyncio.create_task(collect(dispatcher_of(fleet, tokenizer).generate(request())))
        mix.emits(await mix.hear(Start), 0, *ids, finish=STOP)
        (output,) = await collecting
    (choice,) = output.deltas
    assert (choice.text, choice.matched_stop, choice.finish_reason) == ("one two", None, STOP)


async def test_sequences_end_each_in_its_own_way(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        collecting = asyncio.create_task(collect(dispatcher.generate(request(n=2, stop=("two",)))))
        start = await mix.hear(Start)
        mix.emits(start, 0, *ids, sequence=1)
        assert await mix.hear(Cancel) == Cancel(start.leg, 1)
        mix.emits(start, 0, ids[0], finish=LENGTH)
        outputs = await collecting
    assert [text_of(outputs, index) for index in range(2)] == ["one"[: len(text_of(outputs, 0))], "one "]
    reasons = {choice.index: choice.finish_reason for output in outputs for choice in output.deltas}
    assert reasons == {0: LENGTH, 1: STOP}


async def test_prompt_logprobs_come_once(tokenizer: Tokenizer) -> None:
    entries = tuple(TokenLogprobs(token_id, -1.0) for token_id in PROMPT)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        collecting = asyncio.create_task(collect(dispatcher_of(fleet, tokenizer).generate(request(prompt_logprobs=0))))
        start = await mix.hear(Start)
        mix.update(start, prompt_logprobs=entries)
        mix.emits(start, 0, 30)
        mix.emits(start, 1, 31, finish=LENGTH)
        outputs = await collecting
    assert [entry for output in outputs for entry in output.prompt_logprobs] == list(entries)


async def test_a_failure_comes_after_what_was_said(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        outputs = dispatcher.generate(request())
        first = asyncio.create_task(anext(outputs))
        start = await mix.hear(Start)
        mix.emits(start, 0, 30)
        mix.fails(start, Failure(ErrorCode.INVALID_ARGUMENT, "no more"))
        assert ids_of([await first]) == [30]
        with pytest.raises(ServingError) as caught:
            await anext(outputs)
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
        assert dispatcher.num_in_flight == 0


async def test_leaving_early_cancels(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        outputs = dispatcher.generate(request())
        first = asyncio.create_task(anext(outputs))
        start = await mix.hear(Start)
        assert dispatcher.num_in_flight == 1
        mix.emits(start, 0, 30)
        await first
        await outputs.aclose()
        assert await mix.hear(Cancel) == Cancel(start.leg)
        assert dispatcher.num_in_flight == 0


async def test_leaving_before_the_first_token_cancels(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer)
        outputs = dispatcher.generate(request())
        first = asyncio.create_task(anext(outputs))
        start = await mix.hear(Start)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        assert await mix.hear(Cancel) == Cancel(start.leg)
        assert dispatcher.num_in_flight == 0


async def test_more_than_the_limit_are_refused_and_room_is_given_back(tokenizer: Tokenizer) -> None:
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer, max_requests=1)
        first = asyncio.create_task(collect(dispatcher.generate(request())))
        start = await mix.hear(Start)
        with pytest.raises(ServingError) as caught:
            await collect(dispatcher.generate(request()))
        assert (caught.value.kind, caught.value.retry_after_s) == (ErrorKind.OVERLOADED, 1)
        mix.emits(start, 0, 30, finish=LENGTH)
        await first
        second = asyncio.create_task(collect(dispatcher.generate(request())))
        mix.emits(await mix.hear(Start), 0, 30, finish=LENGTH)
        await second
        assert dispatcher.num_in_flight == 0


async def test_stops_are_made_ready_once_a_request_and_after_admission(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1"""
    made: list[Sequence[str]] = []

    class Noted(StopStrings):
        def __init__(self, stops: Sequence[str]) -> None:
            made.append(stops)
            super().__init__(stops)

    monkeypatch.setattr("master.dispatch.dispatcher.StopStrings", Noted)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        dispatcher = dispatcher_of(fleet, tokenizer, max_requests=1)
        first = asyncio.create_task(collect(dispatcher.generate(request(n=4, stop=("x",)))))
        start = await mix.hear(Start)
        assert made == [("x",)]
        with pytest.raises(ServingError):
            await collect(dispatcher.generate(request(n=4, stop=("y",))))
        assert made == [("x",)]
        for sequence in range(4):
            mix.emits(start, 0, 30, sequence=sequence, finish=LENGTH)
        await first


async def test_a_generation_never_begun_counts_for_nothing(tokenizer: Tokenizer) -> None:
    async with Fleet() as fleet:
        dispatcher = dispatcher_of(fleet, tokenizer)
        await dispatcher.generate(request()).aclose()
        assert dispatcher.num_in_flight == 0


async def test_a_slow_reader_misses_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three four five six seven", add_special_tokens=False)
    async with fleet_of(Role.MIX) as (fleet, (mix,)):
        outputs = dispatcher_of(fleet, tokenizer).generate(request())
        first = asyncio.create_task(anext(outputs))
        start = await mix.hear(Start)
        mix.emits(start, 0, ids[0])
        got = [await first]
        for position, token_id in enumerate(ids[1:], start=1):
            mix.emits(start, position, token_id, finish=LENGTH if position == len(ids) - 1 else None)
        session = fleet.workers.session(mix.address)
        assert session is not None
        await soon(lambda: session.num_legs == 0)
        got += await collect(outputs)
    assert ids_of(got) == ids
    assert text_of(got) == "one two three four five six seven"
