"""Structured output through two workers with a random model: nothing but the grammar makes it valid."""

import json
import re
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONObject, ResponseFormatJSONSchema

from pdserve import Client, InvalidRequest
from protos.sampling_messages import Grammar, GrammarKind, SamplingParams
from tests.checkpoints import END
from tests.cluster import Cluster
from tests.worker.engines.torch.engine_rig import Node
from tests.worker.engines.torch.reference import prompt

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who reads the block table?"}]
PERSON: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "roles": {"type": "array", "items": {"enum": ["prefill", "decode"]}, "maxItems": 2},
    },
    "required": ["name", "age", "roles"],
    "additionalProperties": False,
}
AS_PERSON: ResponseFormatJSONSchema = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": PERSON, "strict": True},
}
AS_OBJECT: ResponseFormatJSONObject = {"type": "json_object"}
OVERFLOWING = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(1000)}
    | {"d1000": {}},
}


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"{cluster.http_url}/v1", api_key="any", max_retries=0, timeout=120, http_client=http_client
    ) as opened:
        yield opened


def check_person(text: str | None) -> None:
    person = json.loads(text or "")
    assert list(person) == ["name", "age", "roles"]
    assert len(person["name"]) <= 10 and 0 <= person["age"] <= 130
    assert set(person["roles"]) <= {"prefill", "decode"} and len(person["roles"]) <= 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_schema_is_kept_to(cluster: Cluster, client: openai.AsyncOpenAI, temperature: float) -> None:
    received = cluster.workers["decode-0"].metric("pdserve_transfer_received_blocks_total")
    answer = await client.chat.completions.create(
        model=cluster.model,
        messages=ASK,
        response_format=AS_PERSON,
        temperature=temperature,
        seed=5,
        n=2,
        max_tokens=200,
        extra_body={"cache_salt": f"schema {temperature}"},
    )
    for choice in answer.choices:
        check_person(choice.message.content)
        assert choice.finish_reason == "stop"
    assert cluster.workers["decode-0"].metric("pdserve_transfer_received_blocks_total") > received


async def test_a_stream_of_a_schema_is_its_response(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=cluster.model, messages=ASK, response_format=AS_PERSON, seed=6, max_tokens=200
    )
    stream = await client.chat.completions.create(
        model=cluster.model, messages=ASK, response_format=AS_PERSON, seed=6, max_tokens=200, stream=True
    )
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].finish_reason == whole.choices[0].finish_reason == "stop"


async def test_any_object(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    with Client(cluster.grpc_address) as sdk:
        (brace,) = sdk.tokenize("}")
    answer = await client.chat.completions.create(
        model=cluster.model,
        messages=ASK,
        response_format=AS_OBJECT,
        seed=1,
        max_tokens=30,
        logit_bias={str(brace): 100},  # a random model would not come to the end of an object
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


async def test_choices_regexes_and_grammars(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    choices = ["prefill", "decode", 'neither "one"']
    spellings: list[tuple[dict[str, object], str]] = [
        ({"guided_choice": choices}, "|".join(map(re.escape, choices))),
        ({"guided_regex": r"[a-f]{4,8}-\d{2}"}, r"[a-f]{4,8}-\d{2}"),
        ({"guided_grammar": 'start: "<" /[a-z]{1,9}/ ">"'}, "<[a-z]{1,9}>"),
        ({"structured_outputs": {"choice": ["größer", "kleiner"]}}, "größer|kleiner"),
    ]
    for number, (fields, pattern) in enumerate(spellings):
        answer = await client.completions.create(
            model=cluster.model, prompt=[5, 6, 7], seed=number, max_tokens=60, extra_body=fields
        )
        assert re.fullmatch(pattern, answer.choices[0].text), answer.choices[0].text
        assert answer.choices[0].finish_reason == "stop"


async def test_two_workers_give_what_one_gives(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON))
    with Node(cluster.model_folder) as node:
        for temperature in (0.0, 1.0):
            alone = node.run(
                prompt(40),
                SamplingParams(max_tokens=200, temperature=temperature, seed=9, stop_token_ids=(END,), grammar=grammar),
            )
            answer = await client.completions.create(
                model=cluster.model,
                prompt=list(prompt(40)),
                max_tokens=200,
                temperature=temperature,
                seed=9,
                extra_body={"guided_json": PERSON, "return_token_ids": True},
            )
            extra = answer.choices[0].model_extra
            assert extra is not None and extra["token_ids"] == alone.token_ids[0]
            check_person(answer.choices[0].text)


async def test_what_is_wrong_never_reaches_a_worker(cluster: Cluster, client: openai.AsyncOpenAI) -> None:
    def computed() -> float:
        return sum(worker.metric("pdserve_computed_tokens_total") for worker in cluster.workers.values())

    before = computed()
    wrong: list[dict[str, object]] = [
        {"guided_json": {"type": "no such type"}},
        {"guided_json": OVERFLOWING},
        {"guided_regex": "(("},
        {"guided_regex": "(a{1000}){1000}"},
        {"guided_grammar": "start: missing"},
        {"structured_outputs": {"regex": "(?=a)"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
    ]
    for fields in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=cluster.model, prompt="x", max_tokens=5, extra_body=fields)
        (name,) = fields
        assert str(refused.value.param).startswith(name) and name in refused.value.message
    with Client(cluster.grpc_address) as sdk, pytest.raises(InvalidRequest) as invalid:
        sdk.generate("x", max_tokens=5, regex="((")
    assert invalid.value.field == "grammar"
    assert computed() == before
    assert all(worker.is_running for worker in cluster.workers.values())
