"""Random requests over the whole space of parameters: a prefill and a decode worker give what one worker gives.

Both clusters work on many requests at once, with prefix caches that warm up differently, so sums are added in other
orders. A token whose random number falls within that rounding of a boundary may differ, once in ten thousand. Such a
request is run again on both sides, alone and with cold caches, where everything is computed in the same order; then it
must agree, and few requests may need this.
"""

import asyncio
import dataclasses
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import pytest

from client.async_client import AsyncClient
from client.options import GenerateOptions
from client.results import Completion
from tests.cluster import Cluster

NUM_REQUESTS = int(os.environ.get("PDSERVE_TEST_REQUESTS", "1500"))
SEED = int(os.environ.get("PDSERVE_TEST_SEED", "20261130"))
CONCURRENCY = 24
MAX_RERUN_SHARE = 0.005
LOGPROB_TOLERANCE = 2e-3  # of large negative ones; weights are large here, and so is rounding

BLOCK_SIZE = 16
CHUNK_TOKENS = 48
FIRST_TEXT_ID, VOCABULARY = 3, 512
END_ID = 2
LENGTHS = (1, 2, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 33, CHUNK_TOKENS, 100, 200)
STOPS = ("e", "a", " ", "s t", "er", "\n", "é", "你", "on", "10")
GRAMMARS: tuple[GenerateOptions, ...] = (
    {"regex": "[a-f]{3,9}"},
    {"choice": ["yes", "no", "perhaps"]},
    {"json_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
)


@pytest.fixture(scope="module")
def clusters(tiny_llama: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """(one MIX worker, one PREFILL and one DECODE worker)."""
    flags = (
        f"--block_size={BLOCK_SIZE}",
        f"--max_tokens_per_step={CHUNK_TOKENS}",
        "--max_num_seqs=32",
        "--num_blocks=600",
    )
    with (
        Cluster(tiny_llama, ["MIX"], worker_flags=flags) as whole,
        Cluster(tiny_llama, ["PREFILL", "DECODE"], worker_flags=flags) as split,
    ):
        yield whole, split


@dataclasses.dataclass(frozen=True)
class Request:
    prompt: list[int]
    options: GenerateOptions

    def alone(self) -> "Request":
        """The same, where no cache has anything of it."""
        return Request(self.prompt, {**self.options, "cache_salt": secrets.token_hex(8)})


def random_request(choose: random.Random, prefixes: list[list[int]]) -> Request:
    length = choose.choice(LENGTHS)
    prefix = choose.choice(prefixes)[:length] if choose.random() < 0.5 else []
    prompt = prefix + [choose.randrange(FIRST_TEXT_ID, VOCABULARY) for _ in range(length - len(prefix))]
    max_tokens = choose.choice((1, 2, 3, 8, 16, 24))
    options = GenerateOptions(max_tokens=max_tokens, seed=choose.randrange(2**63), temperature=0.0)

    def sometimes(share: float) -> bool:
        return choose.random() < share

    if sometimes(0.7):
        options["temperature"] = choose.uniform(0.2, 1.6)
        if sometimes(0.4):
            options["top_p"] = choose.uniform(0.2, 1.0)
        if sometimes(0.4):
            options["top_k"] = choose.choice((1, 2, 5, 40))
        if sometimes(0.3):
            options["min_p"] = choose.uniform(0.0, 0.5)
    if sometimes(0.3):
        options["presence_penalty"] = choose.uniform(-2, 2)
    if sometimes(0.3):
        options["frequency_penalty"] = choose.uniform(-2, 2)
    if sometimes(0.3):
        options["repetition_penalty"] = choose.uniform(0.5, 2)
    if sometimes(0.3):
        favoured = END_ID if sometimes(0.5) else choose.randrange(VOCABULARY)
        options["logit_bias"] = {favoured: choose.uniform(-100, 100)}
    if sometimes(0.4):
        options["stop"] = choose.sample(STOPS, choose.randint(1, 3))
        options["include_stop_str_in_output"] = sometimes(0.5)
    if sometimes(0.2):
        options["stop_token_ids"] = choose.sample(range(FIRST_TEXT_ID, VOCABULARY), 8)
    if sometimes(0.3):
        options["min_tokens"] = choose.randint(0, max_tokens)
    if sometimes(0.2):
        options["ignore_eos"] = True
    if sometimes(0.2):
        options["n"] = choose.randint(2, 3)
    if sometimes(0.4):
        options["logprobs"] = choose.choice((0, 1, 5))
    if sometimes(0.2):
        options["skip_special_tokens"] = False
    if sometimes(0.2):
        options["cache_salt"] = choose.choice(("tenant-a", "tenant-b"))
    if sometimes(0.1):
        options.update(choose.choice(GRAMMARS))
        options.pop("min_tokens", None)
        options.pop("logit_bias", None)
        options.pop("stop_token_ids", None)
    return Request(prompt, options)


async def run(client: AsyncClient, requests: list[Request]) -> list[Completion]:
    """All of them, CONCURRENCY at a time."""
    places = asyncio.Semaphore(CONCURRENCY)

    async def one(request: Request) -> Completion:
        async with places:
            return await generate(client, request.prompt, **request.options)

    return await asyncio.gather(*(one(request) for request in requests))


async def generate(client: AsyncClient, prompt: list[int], **options: Unpack[GenerateOptions]) -> Completion:
    return await client.generate(prompt, timeout_s=120, **options)


def difference(whole: Completion, split: Completion) -> str | None:
    """What is not the same; None when all is. What may differ: ids, times, and which cache had what."""
    assert whole.usage is not None and split.usage is not None
    for name in ("prompt_tokens", "completion_tokens"):
        if getattr(whole.usage, name) != getattr(split.usage, name):
            return f"usage.{name}"
    if len(whole.choices) != len(split.choices):
        return "number of choices"
    for one, other in zip(whole.choices, split.choices, strict=True):
        for name in ("index", "token_ids", "text", "finish_reason", "matched_stop"):
            if getattr(one, name) != getattr(other, name):
                return f"choices[{one.index}].{name}: {getattr(one, name)!r} and {getattr(other, name)!r}"
        if len(one.logprobs) != len(other.logprobs):
            return f"choices[{one.index}]: {len(one.logprobs)} and {len(other.logprobs)} logprobs"
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert mine.logprob is not None and theirs.logprob is not None
            if mine.token_id != theirs.token_id or abs(mine.logprob - theirs.logprob) > LOGPROB_TOLERANCE:
                return f"choices[{one.index}].logprobs: {mine} and {theirs}"
    return None


@pytest.mark.timeout(600)
async def test_split_workers_give_what_one_worker_gives(clusters: tuple[Cluster, Cluster]) -> None:
    print(f"PDSERVE_TEST_SEED={SEED} PDSERVE_TEST_REQUESTS={NUM_REQUESTS}")
    choose = random.Random(SEED)
    prefixes = [[choose.randrange(FIRST_TEXT_ID, VOCABULARY) for _ in range(max(LENGTHS))] for _ in range(4)]
    requests = [random_request(choose, prefixes) for _ in range(NUM_REQUESTS)]
    whole, split = clusters
    async with AsyncClient(whole.grpc_address) as one, AsyncClient(split.grpc_address) as two:
        wholes, splits = await asyncio.gather(run(one, requests), run(two, requests))
        unequal = [i for i, pair in enumerate(zip(wholes, splits, strict=True)) if difference(*pair) is not None]
        for index in unequal:
            request = requests[index].alone()
            again = [await generate(client, request.prompt, **request.options) for client in (one, two)]
            assert difference(*again) is None, f"request {index}: {request}: {difference(*again)}"
    assert len(unequal) <= MAX_RERUN_SHARE * NUM_REQUESTS, [
        f"request {i}: {requests[i]}: {difference(wholes[i], splits[i])}" for i in unequal[:5]
    ]
    assert split.workers["decode-0"].metric("pdserve_transfer_received_blocks_total") > NUM_REQUESTS / 2
    assert whole.workers["mix-0"].metric("pdserve_transfer_received_blocks_total") == 0
    whole.check_no_leak()
    split.check_no_leak()
