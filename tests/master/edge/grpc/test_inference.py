import asyncio
import time

import grpc
import msgspec
import pytest

from client.options import GenerateOptions, generate_request
from protos import inference_pb2 as wire
from protos import sampling_pb2
from protos.inference_pb2_grpc import InferenceStub
from protos.sampling_messages import Grammar, GrammarKind
from tests.grpc_calls import all_of, failure_of
from tests.sampling_values import one_of_each
from tests.scripted_service import ScriptedService

TIMEOUT_S = 30.0


async def test_a_text_prompt_is_tokenised_and_answered(inference: InferenceStub, service: ScriptedService) -> None:
    before = int(time.time())
    responses = await all_of(inference.Generate(wire.GenerateRequest(text="hello world"), timeout=TIMEOUT_S))
    expected = service.tokenizer.encode("hello world", add_special_tokens=True)
    assert service.requests[0].prompt_ids == tuple(expected)
    assert [token_id for response in responses for token_id in response.choices[0].token_ids] == expected
    assert "".join(response.choices[0].text for response in responses) == "hello world"
    assert {(response.id, response.model) for response in responses} == {("request-1", "tiny")}
    assert len({response.created for response in responses}) == 1
    assert responses[0].created >= before


async def test_only_the_last_response_has_finish_reason_usage_and_timeline(inference: InferenceStub) -> None:
    *others, last = await all_of(inference.Generate(wire.GenerateRequest(text="hello world"), timeout=TIMEOUT_S))
    assert others
    for response in others:
        assert not response.HasField("usage")
        assert not response.HasField("timeline")
        assert not response.choices[0].HasField("finish_reason")
    assert last.choices[0].finish_reason == sampling_pb2.FINISH_REASON_LENGTH or last.choices[0].matched_stop == "1"
    assert last.usage.prompt_tokens == last.usage.completion_tokens == len(others) + 1
    assert last.usage.cached_tokens == 2
    assert (last.timeline.total_s, last.timeline.transport, last.timeline.blocks_sent) == (1.5, "tcp", 3)


async def test_sequences_are_told_apart_by_index(inference: InferenceStub) -> None:
    request = wire.GenerateRequest(text="hello", options=wire.GenerationOptions(n=3))
    responses = await all_of(inference.Generate(request, timeout=TIMEOUT_S))
    assert [choice.index for choice in responses[0].choices] == [0, 1, 2]


async def test_logprobs_run_parallel_to_ids(inference: InferenceStub) -> None:
    options = wire.GenerationOptions(sampling=sampling_pb2.SamplingParams(logprobs=2))
    responses = await all_of(inference.Generate(wire.GenerateRequest(text="hello", options=options), timeout=TIMEOUT_S))
    for response in responses:
        (choice,) = response.choices
        assert [item.chosen.token_id for item in choice.logprobs] == list(choice.token_ids)
        assert [(top.token_id, top.logprob) for top in choice.logprobs[0].top][1] == (7, -1.5)


async def test_prompt_logprobs_come_once_for_each_prompt_token(
    inference: InferenceStub, service: ScriptedService
) -> None:
    options = wire.GenerationOptions(sampling=sampling_pb2.SamplingParams(prompt_logprobs=0))
    request = wire.GenerateRequest(text="hello world", options=options)
    responses = await all_of(inference.Generate(request, timeout=TIMEOUT_S))
    entries = [entry for response in responses for entry in response.prompt_logprobs]
    assert not entries[0].HasField("chosen")
    assert [entry.chosen.token_id for entry in entries[1:]] == list(service.requests[0].prompt_ids[1:])


async def test_token_ids_are_taken_as_they_are(inference: InferenceStub, service: ScriptedService) -> None:
    request = wire.GenerateRequest(token_ids=wire.TokenIds(ids=[5, 6, 7]))
    await all_of(inference.Generate(request, timeout=TIMEOUT_S))
    assert service.requests[0].prompt_ids == (5, 6, 7)


async def test_an_empty_text_is_a_prompt_where_texts_begin_with_a_token(
    inference: InferenceStub, service: ScriptedService
) -> None:
    await all_of(inference.Generate(wire.GenerateRequest(text=""), timeout=TIMEOUT_S))
    assert service.requests[0].prompt_ids == (0,)
    error = await failure_of(inference.Generate(wire.GenerateRequest(text="", add_special_tokens=False)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_special_tokens_are_left_out_on_request(inference: InferenceStub, service: ScriptedService) -> None:
    await all_of(inference.Generate(wire.GenerateRequest(text="hello", add_special_tokens=False), timeout=TIMEOUT_S))
    assert service.requests[0].prompt_ids == tuple(service.tokenizer.encode("hello", add_special_tokens=False))


async def test_unset_is_not_zero(inference: InferenceStub, service: ScriptedService) -> None:
    await all_of(inference.Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S))
    unset = service.options[0]
    assert (unset.model, unset.sampling, unset.grammar) == (None, {}, None)
    zero = sampling_pb2.SamplingParams(temperature=0, seed=0, top_k=0, logprobs=0, min_tokens=0, presence_penalty=0)
    options = wire.GenerationOptions(sampling=zero, skip_special_tokens=False)
    await all_of(inference.Generate(wire.GenerateRequest(text="hello", options=options), timeout=TIMEOUT_S))
    names = ("temperature", "seed", "top_k", "logprobs", "min_tokens", "presence_penalty")
    assert service.options[1].sampling == {**dict.fromkeys(names, 0), "skip_special_tokens": False}


async def test_every_option_arrives(inference: InferenceStub, service: ScriptedService) -> None:
    asked = {**one_of_each(), "seed": -5, "model": "alias", "regex": "a+"}
    request = generate_request("hello", msgspec.convert(asked, GenerateOptions))
    await all_of(inference.Generate(request, timeout=TIMEOUT_S))
    (arrived,) = service.options
    assert arrived.sampling == {**one_of_each(), "seed": -5}
    assert (arrived.model, arrived.grammar) == ("alias", Grammar(GrammarKind.REGEX, "a+"))


async def test_the_deadline_becomes_the_time_limit(inference: InferenceStub, service: ScriptedService) -> None:
    await all_of(inference.Generate(wire.GenerateRequest(text="hello"), timeout=500))
    await all_of(inference.Generate(wire.GenerateRequest(text="hello")))
    limited, unlimited = service.options
    assert limited.time_limit_s is not None
    assert 0 < limited.time_limit_s <= 510  # on the wire a deadline is rounded up to three digits
    assert unlimited.time_limit_s is None


async def test_a_deadline_that_passes_closes_the_generation(inference: InferenceStub, service: ScriptedService) -> None:
    service.resume.clear()
    error = await failure_of(inference.Generate(wire.GenerateRequest(text="hello"), timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_leaving_closes_the_generation(inference: InferenceStub, service: ScriptedService) -> None:
    service.resume.clear()
    call = inference.Generate(wire.GenerateRequest(text="hello"))
    await call.read()
    call.cancel()
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_leaving_while_output_waits_for_the_reader_closes_the_generation(
    inference: InferenceStub, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    # more than gRPC buffers for a client that does not read
    request = wire.GenerateRequest(token_ids=wire.TokenIds(ids=[5] * 60_000))
    call = inference.Generate(request)
    await call.read()
    assert not service.closed.is_set()
    call.cancel()
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)
    assert not caplog.records
