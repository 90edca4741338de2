"""The other APIs through their official clients, on a running cluster: one prefill and one decode worker."""

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, TextBlock

from tests.cluster import Cluster

ASK = "Name three colours of the rainbow."
MESSAGES: list[MessageParam] = [{"role": "user", "content": ASK}]
GREEDY = {"ignore_eos": True, "temperature": 0}
TIMEOUT_S = 120.0


@pytest.fixture
async def openai_client(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{cluster.http_url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S, http_client=http_client
    ) as client:
        yield client


@pytest.fixture
async def anthropic_client(cluster: Cluster) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http_client = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(
        base_url=cluster.http_url, api_key="any", max_retries=0, timeout=TIMEOUT_S, http_client=http_client
    ) as client:
        yield client


async def chat_text(cluster: Cluster, client: openai.AsyncOpenAI, num_tokens: int) -> str:
    answer = await client.chat.completions.create(
        model=cluster.model,
        messages=[{"role": "user", "content": ASK}],
        max_tokens=num_tokens,
        extra_body=GREEDY,
    )
    return answer.choices[0].message.content or ""


async def test_all_apis_give_the_same_text_and_usage(
    cluster: Cluster, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    text = await chat_text(cluster, openai_client, 16)
    assert text
    response = await openai_client.responses.create(
        model=cluster.model, input=ASK, max_output_tokens=16, extra_body=GREEDY
    )
    message = await anthropic_client.messages.create(
        model=cluster.model, max_tokens=16, messages=MESSAGES, extra_body=GREEDY
    )
    assert response.output_text == text
    assert response.status == "incomplete" and response.usage is not None
    (block,) = message.content
    assert isinstance(block, TextBlock) and block.text == text
    assert message.stop_reason == "max_tokens"
    assert response.usage.output_tokens == message.usage.output_tokens == 16
    counted = await anthropic_client.messages.count_tokens(model=cluster.model, messages=MESSAGES)
    assert counted.input_tokens == response.usage.input_tokens
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted.input_tokens


async def test_streams_say_what_their_responses_say(
    cluster: Cluster, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    text = await chat_text(cluster, openai_client, 24)
    stream = await openai_client.responses.create(
        model=cluster.model, input=ASK, max_output_tokens=24, stream=True, extra_body=GREEDY
    )
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text and len(deltas) > 1
    last = events[-1]
    assert last.type == "response.incomplete" and last.response.output_text == text
    assert last.response.usage is not None and last.response.usage.output_tokens == 24
    async with anthropic_client.messages.stream(
        model=cluster.model, max_tokens=24, messages=MESSAGES, extra_body=GREEDY
    ) as messages:
        assert "".join([delta async for delta in messages.text_stream]) == text
        final = await messages.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 24)


async def test_a_stop_sequence_ends_the_message(
    cluster: Cluster, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    text = await chat_text(cluster, openai_client, 24)
    stop = text[9:12]
    message = await anthropic_client.messages.create(
        model=cluster.model, max_tokens=24, messages=MESSAGES, stop_sequences=[stop], extra_body=GREEDY
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in message.content if block.type == "text") == text[: text.index(stop)]


async def test_what_is_wrong_is_told_by_each_in_its_form(
    cluster: Cluster, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await openai_client.responses.create(model=cluster.model, input=ASK, max_output_tokens=10**7)
    assert (refused.value.param, refused.value.code) == ("max_output_tokens", "context_length_exceeded")
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await anthropic_client.messages.create(
            model=cluster.model, max_tokens=10**7, messages=MESSAGES, timeout=TIMEOUT_S
        )
    with pytest.raises(anthropic.NotFoundError):
        await anthropic_client.messages.create(model="no-such-model", max_tokens=9, messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        await openai_client.embeddings.create(model=cluster.model, input=ASK)


async def test_a_client_may_leave_its_stream_and_nothing_is_held(
    cluster: Cluster, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    stream = await openai_client.responses.create(
        model=cluster.model, input=ASK, max_output_tokens=200, stream=True, extra_body=GREEDY
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    async with anthropic_client.messages.stream(
        model=cluster.model, max_tokens=200, messages=MESSAGES, extra_body=GREEDY
    ) as messages:
        async for _ in messages.text_stream:
            break
    cluster.check_no_leak()
