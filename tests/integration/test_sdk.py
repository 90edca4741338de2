"""The SDK against a local cluster of real processes, prefill and decode apart."""

import json
import urllib.request
from typing import Protocol

import pytest

from pdserve import AsyncClient, Client, InvalidRequest, NotFound
from protos.sampling_messages import FinishReason
from tests.cluster import eventually

PROMPT = "The capital of France is"


class Cluster(Protocol):
    """What these tests use of the fixture."""

    grpc_address: str
    http_url: str
    model: str


def blocks_received(client: Client) -> int:
    return sum(instance.load.transfer.blocks_received for instance in client.cluster())


def test_generate_is_what_http_gives(cluster: Cluster) -> None:
    body = {"model": cluster.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        f"{cluster.http_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        over_http = json.load(response)
    with Client(cluster.grpc_address) as client:
        completion = client.generate(PROMPT, max_tokens=12, temperature=0)
    assert completion.text == over_http["choices"][0]["text"]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == over_http["usage"]["prompt_tokens"]
    assert completion.usage.completion_tokens == len(completion.token_ids) == over_http["usage"]["completion_tokens"]


def test_a_stream_is_its_completion_and_went_through_a_transfer(cluster: Cluster) -> None:
    prompt = "Once upon a time, " * 20
    with Client(cluster.grpc_address) as client:
        before = blocks_received(client)
        with client.stream(prompt, max_tokens=8, temperature=1.0, seed=7, cache_salt="test_sdk") as stream:
            deltas = list(stream)
        again = client.generate(prompt, max_tokens=8, temperature=1.0, seed=7)
        assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == again.token_ids
        assert "".join(delta.text for delta in deltas) == again.text
        assert stream.timeline is not None
        assert stream.timeline.prefill_instance != stream.timeline.decode_instance
        assert stream.timeline.blocks_sent > 0
        eventually(lambda: blocks_received(client) > before, "the worker reports its transfers")


def test_text_and_token_ids_are_the_same_prompt(cluster: Cluster) -> None:
    with Client(cluster.grpc_address) as client:
        token_ids = client.tokenize(PROMPT)
        by_text = client.generate(PROMPT, max_tokens=4, temperature=0)
        assert client.generate(token_ids, max_tokens=4, temperature=0).token_ids == by_text.token_ids


async def test_chats_of_the_asyncio_client(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        answer = await client.chat([{"role": "user", "content": "Say hello."}], max_tokens=1, temperature=0)
        assert answer.finish_reason is FinishReason.LENGTH
        assert len(answer.token_ids) == 1
        several = await client.generate(PROMPT, n=3, max_tokens=3, temperature=1.0, seed=1, logprobs=0)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        assert all(len(choice.logprobs) == len(choice.token_ids) for choice in several.choices)


def test_bad_requests_are_refused_at_the_master(cluster: Cluster) -> None:
    with Client(cluster.grpc_address) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.generate(PROMPT, temperature=-1)
        assert caught.value.field == "temperature"
        with pytest.raises(NotFound):
            client.generate(PROMPT, model="no such model")


def test_the_cluster_is_ready_and_connected(cluster: Cluster) -> None:
    with Client(cluster.grpc_address) as client:
        state = client.cluster()
        assert state.is_ready, state.not_ready_reason
        assert all(instance.is_connected for instance in state)
        assert cluster.model in [model.id for model in client.models()]
