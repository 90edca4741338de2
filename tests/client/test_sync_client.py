"""The server has the test's event loop, so the blocking client gets threads."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from client.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    TooLarge,
    Unavailable,
)
from client.options import Message
from client.retries import RetryPolicy
from client.sync_client import Client
from master.errors import ErrorKind, ServingError, invalid
from protos.sampling_messages import FinishReason
from tests.scripted_service import INSTANCE, MAX_CONTEXT, ScriptedService, serving

TIMEOUT_S = 30.0
ADD = {"type": "function", "function": {"name": "add"}}
QUICK = RetryPolicy(max_attempts=3, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[Client]:
    async with serving(service) as server:
        with Client(str(server.address), timeout_s=10 * TIMEOUT_S, retries=QUICK) as opened:
            yield opened


async def test_generate_gives_the_whole_completion(client: Client, service: ScriptedService) -> None:
    completion = await asyncio.to_thread(client.generate, "hello world", n=2, logprobs=1, max_tokens=3)
    prompt_ids = service.requests[0].prompt_ids
    assert completion.id == "request-1"
    assert completion.model == "tiny"
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.token_ids == completion.choices[1].token_ids == prompt_ids[:3]
    assert completion.text == service.tokenizer.decode(prompt_ids[:3], skip_special_tokens=True)
    assert completion.finish_reason is FinishReason.LENGTH
    assert [item.token_id for item in completion.choices[0].logprobs] == list(completion.token_ids)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(prompt_ids), 6)
    assert completion.timeline is not None
    assert completion.timeline.blocks_sent == 3


async def test_prompt_logprobs_are_of_each_prompt_token(client: Client, service: ScriptedService) -> None:
    completion = await asyncio.to_thread(client.generate, "hello world", prompt_logprobs=0)
    ids = service.requests[0].prompt_ids
    assert [item.token_id for item in completion.prompt_logprobs] == [None, *ids[1:]]
    assert (await asyncio.to_thread(client.generate, "hello")).prompt_logprobs == ()


async def test_generate_takes_token_ids(client: Client, service: ScriptedService) -> None:
    completion = await asyncio.to_thread(client.generate, [40, 41, 42])
    assert service.requests[0].prompt_ids == completion.token_ids == (40, 41, 42)
    assert (completion.finish_reason, completion.choices[0].matched_stop) == (FinishReason.STOP, "1")


async def test_stream_gives_deltas_and_then_usage(client: Client, service: ScriptedService) -> None:
    def read() -> None:
        stream = client.stream("hello world")
        first = next(stream)
        assert (stream.id, stream.usage) == ("request-1", None)
        deltas = [first, *stream]
        assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == service.requests[0].prompt_ids
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert stream.usage is not None
        assert stream.timeline is not None
        assert next(stream, None) is None

    await asyncio.to_thread(read)


async def test_chat_goes_through_the_template(client: Client, service: ScriptedService) -> None:
    messages: list[Message] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    completion = await asyncio.to_thread(client.chat, messages, tools=[ADD], chat_template_kwargs={"suffix": "!"})
    assert completion.text == "<system>be kind<user>hello[1 tools]!<assistant>"


async def test_chat_stream_gives_deltas(client: Client) -> None:
    def read() -> str:
        return "".join(delta.text for delta in client.chat_stream([{"role": "user", "content": "hello"}]))

    assert await asyncio.to_thread(read) == "<user>hello<assistant>"


async def test_tokenize_and_detokenize_are_inverse(client: Client) -> None:
    token_ids = await asyncio.to_thread(client.tokenize, "hello fox", add_special_tokens=False)
    assert await asyncio.to_thread(client.detokenize, token_ids) == "hello fox"
    chat_ids = await asyncio.to_thread(
        client.tokenize, [{"role": "user", "content": "hi"}], add_generation_prompt=False
    )
    assert await asyncio.to_thread(client.detokenize, chat_ids) == "<user>hi"


async def test_models_and_instances_are_listed(client: Client, service: ScriptedService) -> None:
    models = await asyncio.to_thread(client.models)
    assert [(model.id, model.max_context) for model in models] == [("tiny", MAX_CONTEXT), ("alias", MAX_CONTEXT)]
    service.reason = "no decode worker"
    cluster = await asyncio.to_thread(client.cluster)
    assert (cluster.is_ready, cluster.not_ready_reason) == (False, "no decode worker")
    assert len(cluster) == len(list(cluster)) == 1
    instance = cluster[0]
    assert (instance.name, instance.role, instance.load) == (INSTANCE.name, INSTANCE.role, INSTANCE.load)
    assert (instance.incarnation, instance.is_connected, instance.num_blocks) == (3, True, 96)


async def test_a_refused_request_names_the_field(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="temperature") as caught:
        await asyncio.to_thread(client.generate, "hello", temperature=-1)
    assert caught.value.field == "temperature"
    with pytest.raises(InvalidRequest, match="context") as caught:
        await asyncio.to_thread(client.generate, "hello", max_tokens=MAX_CONTEXT)
    assert (caught.value.field, caught.value.code) == ("max_tokens", "context_length_exceeded")


async def test_an_unknown_model_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="other") as caught:
        await asyncio.to_thread(client.generate, "hello", model="other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ErrorKind.OVERLOADED, Overloaded),
        (ErrorKind.UNAVAILABLE, Unavailable),
        (ErrorKind.DEADLINE_EXCEEDED, DeadlineExceeded),
        (ErrorKind.CANCELLED, Cancelled),
        (ErrorKind.INTERNAL, InternalError),
    ],
)
async def test_errors_keep_their_meaning(
    client: Client, service: ScriptedService, kind: ErrorKind, error: type[Exception]
) -> None:
    service.refusals.extend([ServingError(kind, "because")] * QUICK.max_attempts)
    with pytest.raises(error, match="because"):
        await asyncio.to_thread(client.generate, "hello")


async def test_a_busy_server_is_tried_again_until_it_answers(client: Client, service: ScriptedService) -> None:
    service.refusals.append(ServingError(ErrorKind.OVERLOADED, "full"))
    service.refusals.append(ServingError(ErrorKind.UNAVAILABLE, "no workers"))
    completion = await asyncio.to_thread(client.generate, "hello", add_special_tokens=False)
    assert completion.text == "hello"
    assert len(service.requests) == 3


async def test_retries_are_bounded(client: Client, service: ScriptedService) -> None:
    service.refusals.extend([ServingError(ErrorKind.OVERLOADED, "full")] * 10)
    with pytest.raises(Overloaded):
        await asyncio.to_thread(client.generate, "hello")
    assert len(service.requests) == QUICK.max_attempts


async def test_a_wait_beyond_the_deadline_is_not_begun(client: Client, service: ScriptedService) -> None:
    service.refusals.append(ServingError(ErrorKind.OVERLOADED, "full", retry_after_s=1000))
    with pytest.raises(Overloaded) as caught:
        await asyncio.to_thread(client.generate, "hello")
    assert caught.value.retry_after_s == 1000
    assert len(service.requests) == 1


@pytest.mark.parametrize("refusal", [invalid("n", "n is 0"), ServingError(ErrorKind.INTERNAL, "bug")])
async def test_what_can_not_succeed_is_not_tried_again(
    client: Client, service: ScriptedService, refusal: ServingError
) -> None:
    service.refusals.append(refusal)
    with pytest.raises((InvalidRequest, InternalError)):
        await asyncio.to_thread(client.generate, "hello")
    assert len(service.requests) == 1


async def test_nothing_is_tried_again_after_output(client: Client, service: ScriptedService) -> None:
    service.failure_after_output = ServingError(ErrorKind.UNAVAILABLE, "all workers are gone", retry_after_s=0)

    def read() -> None:
        stream = client.stream("hello")
        assert next(stream).token_ids
        with pytest.raises(Unavailable, match="all workers are gone"):
            next(stream)

    await asyncio.to_thread(read)
    assert len(service.requests) == 1


async def test_the_deadline_ends_a_call(client: Client, service: ScriptedService) -> None:
    service.resume.clear()
    with pytest.raises(DeadlineExceeded):
        await asyncio.to_thread(client.generate, "hello", timeout_s=0.3)
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_no_time_is_a_deadline_that_has_passed(client: Client, service: ScriptedService) -> None:
    with pytest.raises(DeadlineExceeded):
        client.stream("hello", timeout_s=0)
    assert not service.requests


async def test_leaving_a_stream_early_cancels_the_request(client: Client, service: ScriptedService) -> None:
    service.resume.clear()

    def leave() -> None:
        with client.stream("hello") as deltas:
            next(deltas)

    await asyncio.to_thread(leave)
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_breaking_out_of_a_stream_cancels_the_request(client: Client, service: ScriptedService) -> None:
    service.resume.clear()

    def leave() -> None:
        for _ in client.stream("hello"):
            break

    await asyncio.to_thread(leave)
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_closing_a_stream_from_another_thread_ends_its_reader(client: Client, service: ScriptedService) -> None:
    service.resume.clear()
    stream = client.stream("hello")
    next_one = asyncio.to_thread(lambda: (next(stream), next(stream)))
    reading = asyncio.create_task(next_one)
    await asyncio.wait_for(service.paused.wait(), TIMEOUT_S)
    threading.Thread(target=stream.close).start()
    with pytest.raises(Cancelled):
        await reading


async def test_the_client_is_shared_by_threads(client: Client, service: ScriptedService) -> None:
    calls = [asyncio.to_thread(client.generate, [token_id]) for token_id in range(20, 40)]
    assert [completion.token_ids for completion in await asyncio.gather(*calls)] == [(i,) for i in range(20, 40)]


async def test_a_message_above_the_limit_is_too_large(client: Client) -> None:
    with pytest.raises(TooLarge, match="larger than max"):
        await asyncio.to_thread(client.tokenize, "x" * (65 * 2**20))


async def test_more_than_grpcs_own_limit_passes_both_ways(client: Client) -> None:
    assert len(await asyncio.to_thread(client.detokenize, [40] * 5_000_000)) == 5_000_000
