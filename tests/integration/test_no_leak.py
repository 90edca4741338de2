"""However clients leave, nothing is left behind; and every request that stays ends once, in time."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from client.options import GenerateOptions
from client.retries import RetryPolicy
from pdserve import AsyncClient
from tests.cluster import Cluster

NUM_REQUESTS = 200
MAX_IN_FLIGHT = 24
DEADLINE_S = 120.0
LONGEST_PROMPT = 400
SEED = 20240607

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(scope="module")
def tight(tiny_llama: Path) -> Iterator[Cluster]:
    """The decode worker's memory holds few requests at once, and the master takes no more than a test sends."""
    with Cluster(
        tiny_llama,
        ["PREFILL", "DECODE"],
        worker_flags=["--max_tokens_per_step=128", "--max_num_seqs=16"],
        flags_of={"prefill-0": ["--num_blocks=120"], "decode-0": ["--num_blocks=60"]},
        master_flags=[f"--max_requests={MAX_IN_FLIGHT}"],
    ) as cluster:
        yield cluster
        cluster.check_no_leak()


@dataclass(frozen=True)
class Plan:
    """What one client does. It leaves after `leaves_after_s`, or after `leaves_at` outputs, or never."""

    prompt: list[int]
    n: int
    max_tokens: int
    seed: int
    leaves_after_s: float | None
    leaves_at: int | None

    @property
    def stays(self) -> bool:
        return self.leaves_after_s is None and self.leaves_at is None


def plan(chance: random.Random) -> Plan:
    leaves = chance.choice(["never", "never", "before the first token", "in the stream", "in the stream"])
    shared = chance.randrange(4) * 16
    prompt = [5] * shared + [chance.randrange(3, 512) for _ in range(chance.randrange(1, LONGEST_PROMPT - shared))]
    return Plan(
        prompt=prompt,
        n=chance.choice([1, 1, 1, 3]),
        max_tokens=chance.choice([1, 2, 20, 60]),
        seed=chance.randrange(100),
        leaves_after_s=chance.uniform(0.0, 0.2) if leaves == "before the first token" else None,
        leaves_at=chance.choice([1, 2, 5, 20]) if leaves == "in the stream" else None,
    )


class Ends:
    """How the sequences of a request ended, and what it gave."""

    def __init__(self) -> None:
        self.reasons: Counter[int] = Counter()  # by sequence
        self.num_outputs = 0
        self.completion_tokens: int | None = None

    def check(self, plan: Plan) -> None:
        assert self.reasons == Counter(range(plan.n)), (plan, self.reasons)
        assert self.completion_tokens is not None
        assert plan.n <= self.completion_tokens <= plan.n * plan.max_tokens


async def over_grpc(cluster: Cluster, client: AsyncClient, plan: Plan, ends: Ends) -> None:
    options: GenerateOptions = {"n": plan.n, "max_tokens": plan.max_tokens, "temperature": 1.0, "seed": plan.seed}
    async with client.stream(plan.prompt, **options) as stream:
        async for delta in stream:
            ends.num_outputs += 1
            if delta.finish_reason is not None:
                ends.reasons[delta.index] += 1
            if ends.num_outputs == plan.leaves_at:
                return
        ends.completion_tokens = stream.usage.completion_tokens if stream.usage else None


async def over_http(cluster: Cluster, client: openai.AsyncOpenAI, plan: Plan, ends: Ends) -> None:
    async with await client.completions.create(
        model=cluster.model,
        prompt=plan.prompt,
        n=plan.n,
        max_tokens=plan.max_tokens,
        temperature=1.0,
        seed=plan.seed,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        async for chunk in stream:
            ends.num_outputs += 1
            for choice in chunk.choices:
                if choice.finish_reason is not None:
                    ends.reasons[choice.index] += 1
            if ends.num_outputs == plan.leaves_at:
                return
            if chunk.usage is not None:
                ends.completion_tokens = chunk.usage.completion_tokens


async def carry_out(run: Callable[[Plan, Ends], Awaitable[None]], plan: Plan, room: asyncio.Semaphore) -> None:
    ends = Ends()
    async with room, asyncio.timeout(DEADLINE_S):
        if plan.leaves_after_s is None:
            await run(plan, ends)
        else:
            try:
                async with asyncio.timeout(plan.leaves_after_s):
                    await run(plan, ends)
            except TimeoutError:
                return
    if plan.stays:
        ends.check(plan)


async def test_clients_that_come_and_go_leave_nothing(tight: Cluster) -> None:
    chance = random.Random(SEED)
    plans = [plan(chance) for _ in range(NUM_REQUESTS)]
    # Cancelling a call takes its time to reach the master, which until then counts the request
    room = asyncio.Semaphore(MAX_IN_FLIGHT // 2)
    http = openai.AsyncOpenAI(base_url=f"{tight.http_url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    async with AsyncClient(tight.grpc_address, retries=ONCE, timeout_s=DEADLINE_S) as grpc, http:
        async with asyncio.TaskGroup() as tasks:
            for number, one in enumerate(plans):
                run = (
                    (lambda plan, ends: over_http(tight, http, plan, ends))
                    if number % 2
                    else (lambda plan, ends: over_grpc(tight, grpc, plan, ends))
                )
                tasks.create_task(carry_out(run, one, room))
        await asyncio.to_thread(tight.check_no_leak)
        assert sum(one.stays for one in plans) > NUM_REQUESTS // 4
        await assert_all_room_is_back(grpc)


async def assert_all_room_is_back(client: AsyncClient) -> None:
    """The master takes as many requests at once as it may; none of those that left counts any more."""

    async def one(number: int) -> None:
        completion = await client.generate([5] * 40, max_tokens=4, seed=number, ignore_eos=True)
        assert len(completion.token_ids) == 4

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for number in range(MAX_IN_FLIGHT):
            tasks.create_task(one(number))


async def test_long_prompts_on_a_small_decode_worker_all_finish(tight: Cluster) -> None:
    """Each of them alone takes half of its memory; none waits for another in a circle."""
    chance = random.Random(SEED)
    prompts = [[chance.randrange(3, 512) for _ in range(400)] for _ in range(MAX_IN_FLIGHT)]
    async with AsyncClient(tight.grpc_address, retries=ONCE, timeout_s=DEADLINE_S) as client:
        completions = await asyncio.gather(
            *(client.generate(prompt, max_tokens=50, ignore_eos=True, seed=1) for prompt in prompts)
        )
    assert [len(completion.token_ids) for completion in completions] == [50] * MAX_IN_FLIGHT
    await asyncio.to_thread(tight.check_no_leak)


async def test_a_request_that_never_fits_is_refused_and_one_too_many_too(tight: Cluster) -> None:
    async with AsyncClient(tight.grpc_address, retries=ONCE, timeout_s=DEADLINE_S) as client:
        with pytest.raises(Exception, match="worker here holds 961 tokens"):
            await client.generate([5] * 900, max_tokens=62)
        results = await asyncio.gather(
            *(client.generate([5] * 40, max_tokens=64, ignore_eos=True) for _ in range(2 * MAX_IN_FLIGHT)),
            return_exceptions=True,
        )
    refused = [result for result in results if isinstance(result, BaseException)]
    assert 0 < len(refused) <= MAX_IN_FLIGHT
    assert {type(error).__name__ for error in refused} == {"Overloaded"}
    await asyncio.to_thread(tight.check_no_leak)
