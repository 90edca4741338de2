"""The whole of it through OpenAI's own client: a running cluster with a real model behind `cluster`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.completion_choice import Logprobs

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name three colours of the rainbow."}]
PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown"
NO_EOS = {"ignore_eos": True}
TIMEOUT_S = 120.0


class Cluster(Protocol):
    http_url: str
    model: str


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{cluster.http_url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S, http_client=http_client
    ) as opened:
        yield opened


async def test_the_model_is_listed(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    assert cluster.model in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve(cluster.model)).id == cluster.model
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("no-such-model")


async def test_a_chat_is_answered_with_exact_usage(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=cluster.model, messages=ASK, max_completion_tokens=12, temperature=0, extra_body=NO_EOS
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.completion_tokens == 12 and usage.total_tokens == usage.prompt_tokens + 12
    assert 0 <= (usage.prompt_tokens_details.cached_tokens or 0) <= usage.prompt_tokens


async def test_a_stream_says_what_the_response_says(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=cluster.model, messages=ASK, max_tokens=24, temperature=0)
    stream = await client.chat.completions.create(
        model=cluster.model,
        messages=ASK,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in [*chunks, last]}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [*[None] * (len(chunks) - 1), whole.choices[0].finish_reason]
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
async def test_a_completion_has_exactly_max_tokens(
    cluster: Cluster, client: openai.AsyncOpenAI, max_tokens: int
) -> None:
    answer = await client.completions.create(
        model=cluster.model, prompt=PROMPT, max_tokens=max_tokens, temperature=0, logprobs=0, extra_body=NO_EOS
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == max_tokens
    assert len(tokens_of(answer.choices[0].logprobs)) == max_tokens


def tokens_of(logprobs: Logprobs | None) -> list[str]:
    assert logprobs is not None and logprobs.tokens is not None
    assert logprobs.token_logprobs is not None and len(logprobs.token_logprobs) == len(logprobs.tokens)
    assert all(logprob is None or logprob <= 0 for logprob in logprobs.token_logprobs)
    return logprobs.tokens


async def test_chat_logprobs_are_one_a_token_and_greedy_takes_the_likeliest(
    cluster: Cluster, client: openai.AsyncOpenAI
) -> None:
    answer = await client.chat.completions.create(
        model=cluster.model,
        messages=ASK,
        max_tokens=10,
        temperature=0,
        logprobs=True,
        top_logprobs=5,
        extra_body=NO_EOS,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 10
    for token in logprobs.content:
        assert len(token.top_logprobs) == 5
        assert token.top_logprobs[0].token == token.token and token.top_logprobs[0].logprob == token.logprob
        likelihoods = [top.logprob for top in token.top_logprobs]
        assert likelihoods == sorted(likelihoods, reverse=True)


async def test_sequences_are_numbered_and_a_seed_repeats_them(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    async def texts(seed: int) -> list[str]:
        answer = await client.completions.create(
            model=cluster.model, prompt=PROMPT, n=4, max_tokens=8, temperature=1, seed=seed, extra_body=NO_EOS
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.usage is not None and answer.usage.completion_tokens == 4 * 8
        return [choice.text for choice in answer.choices]

    first, again, other = await texts(7), await texts(7), await texts(8)
    assert first == again != other
    assert len(set(first)) > 1


async def test_prompts_are_numbered_with_their_sequences(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    prompts = ["One two three", "Red green", "Once upon a time"]
    together = await client.completions.create(
        model=cluster.model, prompt=prompts, n=2, max_tokens=5, temperature=0, echo=True
    )
    assert [choice.index for choice in together.choices] == list(range(6))
    for number, prompt in enumerate(prompts):
        alone = await client.completions.create(
            model=cluster.model, prompt=prompt, max_tokens=5, temperature=0, echo=True
        )
        assert alone.choices[0].text.startswith(prompt)
        assert [choice.text for choice in together.choices[2 * number : 2 * number + 2]] == [alone.choices[0].text] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_before_it(
    cluster: Cluster, client: openai.AsyncOpenAI, stream: bool
) -> None:
    async def text(stop: list[str] | None) -> tuple[str, str]:
        if not stream:
            answer = await client.completions.create(
                model=cluster.model, prompt=PROMPT, max_tokens=24, temperature=0, stop=stop, extra_body=NO_EOS
            )
            return answer.choices[0].text, answer.choices[0].finish_reason
        chunks = await client.completions.create(
            model=cluster.model, prompt=PROMPT, max_tokens=24, temperature=0, stop=stop, stream=True, extra_body=NO_EOS
        )
        choices = [chunk.choices[0] async for chunk in chunks]
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    whole, reason = await text(None)
    assert reason == "length" and len(whole) > 12
    stop = whole[9:12]
    assert await text([stop]) == (whole[: whole.index(stop)], "stop")
    assert await text(["\x07 never"]) == (whole, "length")


async def test_a_token_that_is_forced_comes(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    free = await client.completions.create(
        model=cluster.model, prompt=PROMPT, max_tokens=1, temperature=0, extra_body={"return_token_ids": True}
    )
    extra = free.choices[0].model_extra
    assert extra is not None
    banned = {str(extra["token_ids"][0]): -100}
    other = await client.completions.create(
        model=cluster.model, prompt=PROMPT, max_tokens=1, temperature=0, logit_bias=banned
    )
    assert other.choices[0].text != free.choices[0].text


async def test_what_is_wrong_is_told_and_nothing_breaks(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.completions.create(model="no-such-model", prompt=PROMPT)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        await client.completions.create(model=cluster.model, prompt=PROMPT, temperature=-1)
    assert hot.value.param == "temperature"
    for prompt in ([-1], [10**9]):
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=cluster.model, prompt=prompt)
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=10**7)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model=cluster.model, prompt="fox " * 100_000)
    assert long.value.code == "context_length_exceeded"
    answer = await client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=1)
    assert answer.usage is not None and answer.usage.completion_tokens == 1


async def test_a_client_may_leave_a_stream_and_others_are_served(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    alone = await client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=8, temperature=0)
    for _ in range(3):
        stream = await client.completions.create(
            model=cluster.model, prompt=PROMPT, max_tokens=200, temperature=0, stream=True, extra_body=NO_EOS
        )
        async for _ in stream:
            break
        await stream.close()
    after = await client.completions.create(model=cluster.model, prompt=PROMPT, max_tokens=8, temperature=0)
    assert after.choices[0].text == alone.choices[0].text


async def test_requests_at_once_get_what_they_get_alone(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    async def text(number: int) -> str:
        answer = await client.completions.create(
            model=cluster.model, prompt=f"{number} and {number + 1}", max_tokens=6, temperature=0
        )
        return answer.choices[0].text

    alone = [await text(number) for number in range(6)]
    assert await asyncio.gather(*(text(number) for number in range(6))) == alone
