import grpc
import pytest

from master.errors import ErrorKind, ServingError
from protos import inference_pb2 as wire
from protos import sampling_pb2
from protos.inference_pb2_grpc import InferenceStub
from tests.grpc_calls import failure_of, metadata_of
from tests.scripted_service import ScriptedService

TIMEOUT_S = 30.0


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (wire.GenerateRequest(), "prompt", "not set"),
        (wire.GenerateRequest(token_ids=wire.TokenIds()), "prompt", "empty"),
        (wire.GenerateRequest(token_ids=wire.TokenIds(ids=[1_000_000])), "prompt", "1000000"),
        (
            wire.GenerateRequest(text="a", options=wire.GenerationOptions(n=0)),
            "n",
            "0",
        ),
        (
            wire.GenerateRequest(
                text="a", options=wire.GenerationOptions(sampling=sampling_pb2.SamplingParams(temperature=float("nan")))
            ),
            "temperature",
            "nan",
        ),
        (
            wire.GenerateRequest(
                text="a",
                options=wire.GenerationOptions(sampling=sampling_pb2.SamplingParams(grammar=sampling_pb2.Grammar())),
            ),
            "grammar",
            "no kind",
        ),
        (
            wire.GenerateRequest(
                text="a", options=wire.GenerationOptions(sampling=sampling_pb2.SamplingParams(bad_words_ids=[b"1234"]))
            ),
            "bad_words_ids",
            "between master and workers",
        ),
    ],
)
async def test_a_bad_request_is_refused_by_field(
    inference: InferenceStub, service: ScriptedService, request_: wire.GenerateRequest, field: str, words: str
) -> None:
    error = await failure_of(inference.Generate(request_, timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (error.details() or "")
    assert metadata_of(error)["pdserve-field"] == field
    assert not service.requests


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.INVALID_REQUEST, grpc.StatusCode.INVALID_ARGUMENT),
        (ErrorKind.NOT_FOUND, grpc.StatusCode.NOT_FOUND),
        (ErrorKind.OVERLOADED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorKind.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (ErrorKind.DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED),
        (ErrorKind.CANCELLED, grpc.StatusCode.CANCELLED),
        (ErrorKind.INTERNAL, grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors_keep_their_meaning(
    inference: InferenceStub, service: ScriptedService, kind: ErrorKind, code: grpc.StatusCode
) -> None:
    service.refusals.append(ServingError(kind, "why: 你好", field="stop[0]\n", code="word", retry_after_s=7))
    error = await failure_of(inference.Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S))
    assert (error.code(), error.details()) == (code, "why: 你好")
    metadata = metadata_of(error)
    assert (metadata["pdserve-field"], metadata["pdserve-code"]) == ("stop[0]\\n", "word")
    assert metadata["retry-after-s"] == "7"


async def test_an_error_after_output_ends_the_stream_with_its_status(
    inference: InferenceStub, service: ScriptedService
) -> None:
    service.failure_after_output = ServingError(ErrorKind.UNAVAILABLE, "all workers are gone")
    call = inference.Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S)
    assert (await call.read()).choices
    with pytest.raises(grpc.aio.AioRpcError, match="all workers are gone") as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_message_too_long_for_the_trailers_is_cut(inference: InferenceStub, service: ScriptedService) -> None:
    service.refusals.append(ServingError(ErrorKind.INVALID_REQUEST, "é\ud800" * 50_000))
    error = await failure_of(inference.Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").endswith(" …")


async def test_an_unknown_model_is_not_found_by_every_method(
    inference: InferenceStub, service: ScriptedService
) -> None:
    options = wire.GenerationOptions(model="other")
    messages = [wire.ChatMessage(role="user", content="hello")]
    calls = [
        inference.Generate(wire.GenerateRequest(text="hello", options=options), timeout=TIMEOUT_S).read(),
        inference.Chat(wire.ChatRequest(messages=messages, options=options), timeout=TIMEOUT_S).read(),
        inference.Tokenize(wire.TokenizeRequest(text="hello", model="other"), timeout=TIMEOUT_S),
        inference.Detokenize(wire.DetokenizeRequest(token_ids=[3], model="other"), timeout=TIMEOUT_S),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError, match="'other' is not served") as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert metadata_of(caught.value)["pdserve-code"] == "model_not_found"
    assert not service.requests
