import asyncio
from collections.abc import AsyncIterator

import pytest

from client.async_client import AsyncClient
from client.errors import Cancelled, DeadlineExceeded, InvalidRequest, NotFound, Overloaded, TooLarge, Unavailable
from client.retries import RetryPolicy
from master.errors import ErrorKind, ServingError
from protos.sampling_messages import FinishReason
from tests.scripted_service import INSTANCE, ScriptedService, serving

TIMEOUT_S = 30.0
QUICK = RetryPolicy(max_attempts=3, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[AsyncClient]:
    async with (
        serving(service) as server,
        AsyncClient(str(server.address), timeout_s=10 * TIMEOUT_S, retries=QUICK) as opened,
    ):
        yield opened


async def test_generate_gives_the_whole_completion(client: AsyncClient, service: ScriptedService) -> None:
    completion = await client.generate("hello world", n=2, logprobs=1, max_tokens=3)
    assert completion.token_ids == completion.choices[1].token_ids == service.requests[0].prompt_ids[:3]
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(completion.choices[0].logprobs) == 3
    assert completion.usage is not None
    assert completion.timeline is not None


async def test_stream_gives_deltas_and_then_usage(client: AsyncClient, service: ScriptedService) -> None:
    stream = client.stream("hello world")
    first = await anext(stream)
    assert (stream.id, stream.usage) == ("request-1", None)
    deltas = [first, *[delta async for delta in stream]]
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == service.requests[0].prompt_ids
    assert stream.usage is not None
    assert await anext(stream, None) is None


async def test_a_slow_reader_gets_everything(client: AsyncClient, service: ScriptedService) -> None:
    stream = client.stream([40] * 2000)
    await service.closed.wait()  # all of it was written before any of it is read
    assert len([delta async for delta in stream]) == 2000


async def test_chat_and_chat_stream_go_through_the_template(client: AsyncClient) -> None:
    assert (await client.chat([{"role": "user", "content": "hello"}])).text == "<user>hello<assistant>"
    stream = client.chat_stream([{"role": "user", "content": "hello"}], add_generation_prompt=False)
    assert "".join([delta.text async for delta in stream]) == "<user>hello"


async def test_the_unary_calls(client: AsyncClient) -> None:
    token_ids = await client.tokenize("hello fox", add_special_tokens=False)
    assert await client.detokenize(token_ids) == "hello fox"
    assert [model.id for model in await client.models()] == ["tiny", "alias"]
    assert [instance.name for instance in await client.cluster()] == [INSTANCE.name]


async def test_errors_keep_their_meaning(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await client.generate("hello", top_p=0)
    assert caught.value.field == "top_p"
    with pytest.raises(NotFound):
        await client.tokenize("hello", model="other")
    with pytest.raises(TooLarge):
        await client.tokenize("x" * (65 * 2**20))


async def test_a_busy_server_is_tried_again_within_bounds(client: AsyncClient, service: ScriptedService) -> None:
    service.refusals.extend([ServingError(ErrorKind.OVERLOADED, "full")] * 2)
    assert (await client.generate("hello", add_special_tokens=False)).text == "hello"
    service.refusals.extend([ServingError(ErrorKind.OVERLOADED, "full")] * 4)
    with pytest.raises(Overloaded):
        await client.generate("hello")
    assert len(service.requests) == 2 * QUICK.max_attempts


async def test_nothing_is_tried_again_after_output(client: AsyncClient, service: ScriptedService) -> None:
    service.failure_after_output = ServingError(ErrorKind.UNAVAILABLE, "all workers are gone", retry_after_s=0)
    stream = client.stream("hello")
    assert (await anext(stream)).token_ids
    with pytest.raises(Unavailable, match="all workers are gone"):
        await anext(stream)
    assert len(service.requests) == 1


async def test_the_deadline_ends_a_call(client: AsyncClient, service: ScriptedService) -> None:
    service.resume.clear()
    with pytest.raises(DeadlineExceeded):
        await client.generate("hello", timeout_s=0.3)
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_leaving_a_stream_early_cancels_the_request(client: AsyncClient, service: ScriptedService) -> None:
    service.resume.clear()
    async with client.stream("hello") as deltas:
        await anext(deltas)
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_breaking_out_of_a_stream_cancels_the_request(client: AsyncClient, service: ScriptedService) -> None:
    service.resume.clear()
    async for _ in client.stream("hello"):
        break
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_closing_a_stream_is_no_cancellation_of_its_reader(client: AsyncClient, service: ScriptedService) -> None:
    service.resume.clear()
    stream = client.stream("hello")
    await anext(stream)
    reading = asyncio.ensure_future(anext(stream))
    await service.paused.wait()
    stream.close()
    with pytest.raises(Cancelled):
        await reading
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_cancelling_the_reader_cancels_the_request(client: AsyncClient, service: ScriptedService) -> None:
    service.resume.clear()
    reading = asyncio.create_task(client.generate("hello"))
    await asyncio.wait_for(service.paused.wait(), TIMEOUT_S)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_a_read_that_was_given_up_does_not_look_like_the_end(
    client: AsyncClient, service: ScriptedService
) -> None:
    service.resume.clear()
    stream = client.stream("hello")
    await anext(stream)
    await service.paused.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)
    with pytest.raises(Cancelled):
        await anext(stream)


def test_it_is_made_where_a_loop_runs() -> None:
    with pytest.raises(RuntimeError, match="loop"):
        AsyncClient("127.0.0.1:1")
