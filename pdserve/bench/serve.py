"""`pdserve bench serve`: load for a cluster, and what its clients would have felt.

Closed loop: `concurrency` clients, each with one request at a time. Open loop (`rate`): requests arrive by a Poisson
process whatever the cluster does, which is how the world behaves. Prompts are random token ids, so that nothing is in a
prefix cache unless `shared_prefix_tokens` says so.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from client.async_client import AsyncClient
from client.errors import PdserveError
from client.results import Timeline
from config import checks
from config.flags import FlagError, flag
from pdserve.master_address import MasterAddressFlags

FIRST_TOKEN_ID = 100  # below are a tokenizer's special tokens
LAST_TOKEN_ID = 30_000


@dataclass(frozen=True)
class BenchConfig(MasterAddressFlags):
    requests: int = flag(32, "How many", group="Load", check=checks.at_least(1))
    concurrency: int = flag(4, "Clients, each with one request at a time", group="Load", check=checks.at_least(1))
    rate: float | None = flag(
        None,
        "Requests per second, arriving at random; instead of concurrency",
        group="Load",
        check=checks.more_than(0.0),
    )
    prompt_tokens: int = flag(256, "Length of each prompt", group="Load", check=checks.at_least(1))
    shared_prefix_tokens: int = flag(0, "Leading tokens that all prompts share", group="Load", check=checks.at_least(0))
    max_tokens: int = flag(32, "Length of each completion", group="Load", check=checks.at_least(1))
    max_token_id: int = flag(
        LAST_TOKEN_ID, "Prompts are of ids up to this", group="Load", check=checks.more_than(FIRST_TOKEN_ID)
    )
    seed: int = flag(0, "Of prompts and arrivals", group="Load", check=checks.at_least(0))
    timeout_s: float = flag(600.0, "Of each request", group="Load", unit="s", check=checks.more_than(0.0))
    json: bool = flag(False, "Print JSON instead of a table", group="Display")

    def __post_init__(self) -> None:
        if self.shared_prefix_tokens > self.prompt_tokens:
            problem = f"{self.shared_prefix_tokens}: must be at most prompt_tokens, {self.prompt_tokens}"
            raise FlagError("shared_prefix_tokens", problem)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it; times in seconds."""

    ttft_s: float
    e2e_s: float
    arrivals_s: tuple[float, ...]  # of each output after the first, since the one before
    num_tokens: int
    timeline: Timeline | None

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first."""
        return (self.e2e_s - self.ttft_s) / max(1, self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Spread:
    """How one measure is spread, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Report:
    """`blocks_sent` and `transfer_ms` are of the hand-offs; gap_ms is between the first two outputs of a request."""

    requests: int
    failures: int
    duration_s: float
    requests_per_s: float
    completion_tokens: int
    completion_tokens_per_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    gap_ms: Spread
    transfer_ms: Spread
    blocks_sent: int


async def run_bench(config: BenchConfig) -> int:
    """Prints the report; returns 1 when a request failed. Raises PdserveError if the master can't be reached."""
    choose = random.Random(config.seed)
    prompts = _prompts(config, choose)
    async with AsyncClient(config.address, timeout_s=config.timeout_s, ca_file=config.ca_file) as client:
        await client.models()
        started_s = time.monotonic()
        if config.rate is None:
            outcomes = await _closed_loop(client, config, prompts)
        else:
            outcomes = await _open_loop(client, config, prompts, choose)
    report = summarise(outcomes, time.monotonic() - started_s)
    if config.json:
        print(json.dumps(asdict(report)))
    else:
        _show(report)
    return 1 if report.failures else 0


def summarise(outcomes: Sequence[Sample | None], duration_s: float) -> Report:
    """None stands for a request that failed."""
    samples = [outcome for outcome in outcomes if outcome is not None]
    timelines = [sample.timeline for sample in samples if sample.timeline is not None]
    num_tokens = sum(sample.num_tokens for sample in samples)
    return Report(
        requests=len(outcomes),
        failures=len(outcomes) - len(samples),
        duration_s=duration_s,
        requests_per_s=len(samples) / duration_s,
        completion_tokens=num_tokens,
        completion_tokens_per_s=num_tokens / duration_s,
        ttft_ms=_spread([sample.ttft_s for sample in samples]),
        tpot_ms=_spread([sample.tpot_s for sample in samples if sample.num_tokens > 1]),
        itl_ms=_spread([gap for sample in samples for gap in sample.arrivals_s]),
        e2e_ms=_spread([sample.e2e_s for sample in samples]),
        gap_ms=_spread([sample.arrivals_s[0] for sample in samples if sample.arrivals_s]),
        transfer_ms=_spread([timeline.transfer_s for timeline in timelines if timeline.transport]),
        blocks_sent=sum(timeline.blocks_sent for timeline in timelines),
    )


def _prompts(config: BenchConfig, choose: random.Random) -> list[list[int]]:
    def ids(count: int) -> list[int]:
        return [choose.randint(FIRST_TOKEN_ID, config.max_token_id) for _ in range(count)]

    shared = ids(config.shared_prefix_tokens)
    return [shared + ids(config.prompt_tokens - len(shared)) for _ in range(config.requests)]


async def _closed_loop(client: AsyncClient, config: BenchConfig, prompts: list[list[int]]) -> list[Sample | None]:
    outcomes: list[Sample | None] = []
    waiting = iter(prompts)

    async def work() -> None:
        for prompt in waiting:
            outcomes.append(await _request(client, config, prompt))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(config.concurrency):
            tasks.create_task(work())
    return outcomes


async def _open_loop(
    client: AsyncClient, config: BenchConfig, prompts: list[list[int]], choose: random.Random
) -> list[Sample | None]:
    async with asyncio.TaskGroup() as tasks:
        running = []
        async for prompt in _arrivals(config, prompts, choose):
            running.append(tasks.create_task(_request(client, config, prompt)))
    return [task.result() for task in running]


async def _arrivals(config: BenchConfig, prompts: list[list[int]], choose: random.Random) -> AsyncIterator[list[int]]:
    assert config.rate is not None
    due_s = time.monotonic()
    for prompt in prompts:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        yield prompt
        due_s += choose.expovariate(config.rate)


async def _request(client: AsyncClient, config: BenchConfig, prompt: list[int]) -> Sample | None:
    started_s = time.monotonic()
    times_s: list[float] = []
    num_tokens = 0
    try:
        stream = client.stream(prompt, max_tokens=config.max_tokens, temperature=0.0, ignore_eos=True)
        async with stream:
            async for delta in stream:
                times_s.append(time.monotonic())
                num_tokens += len(delta.token_ids)
    except PdserveError:
        return None
    gaps_s = tuple(later - earlier for earlier, later in itertools.pairwise(times_s))
    return Sample(times_s[0] - started_s, times_s[-1] - started_s, gaps_s, num_tokens, stream.timeline)


def _spread(seconds: Sequence[float]) -> Spread:
    if not seconds:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(second * 1000 for second in seconds)

    def percentile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Spread(statistics.fmean(ordered), percentile(0.5), percentile(0.9), percentile(0.99))


def _show(report: Report) -> None:
    table = Table("", "mean", "p50", "p90", "p99", title="milliseconds")
    rows = (
        ("TTFT", report.ttft_ms),
        ("TPOT", report.tpot_ms),
        ("ITL", report.itl_ms),
        ("E2E latency", report.e2e_ms),
        ("first to second output", report.gap_ms),
        ("KV transfer", report.transfer_ms),
    )
    for name, spread in rows:
        table.add_row(name, *(f"{value:.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99)))
    console = Console()
    console.print(table)
    console.print(
        f"{report.requests} requests, {report.failures} failed, in {report.duration_s:.1f} s: "
        f"{report.requests_per_s:.2f} requests/s, {report.completion_tokens_per_s:.1f} tokens/s, "
        f"{report.blocks_sent} blocks transferred"
    )
