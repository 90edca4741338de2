"""`pdserve bench router`: what one routing decision costs, with fleets of several sizes that hold a million blocks."""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from config import checks
from config.flags import flag
from master.routing.policies import POLICIES
from master.routing.route_choice import Fleet, choose_route
from master.routing.router import Route, pick_decode
from master.routing.views import PromptView, WorkerView
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role

BLOCK_SIZE = 16
MODEL = "bench"
LARGEST_CONTEXT = 200_000


@dataclass(frozen=True)
class RouterBenchConfig:
    workers: tuple[int, ...] = flag((10, 100, 1000), "Sizes of fleets, half of them prefill workers", group="Load")
    prompt_tokens: tuple[int, ...] = flag((1000, 100_000), "Lengths of prompts", group="Load")
    cached_blocks: int = flag(1_000_000, "Held by all workers together", group="Load", check=checks.at_least(0))
    holders: int = flag(40, "Workers that hold the whole prompt", group="Load", check=checks.at_least(0))
    decisions: int = flag(50, "How many are timed", group="Load", check=checks.at_least(1))
    scheduler_policy: str = flag("soonest", f"One of {', '.join(POLICIES)}", group="Load")


@dataclass(frozen=True, slots=True)
class Decisions:
    """Medians: `first_us` of choosing who computes a prompt whose hashes are known, `decode_us` who decodes it.

    `hash_us` is what naming the prompt's blocks costs, once a request.
    """

    workers: int
    prompt_tokens: int
    first_us: float
    decode_us: float
    hash_us: float


def bench_router(config: RouterBenchConfig) -> int:
    """Prints JSON."""
    found = [_measure(config, workers, tokens) for workers in config.workers for tokens in config.prompt_tokens]
    print(json.dumps([asdict(decisions) for decisions in found]))
    return 0


def _measure(config: RouterBenchConfig, num_workers: int, num_tokens: int) -> Decisions:
    policy = POLICIES[config.scheduler_policy]
    token_ids = tuple(range(num_tokens))
    chain: list[bytes] = []
    extend_chain(chain, root_hash(MODEL), token_ids, num_tokens, BLOCK_SIZE)
    workers = _fleet(config, num_workers, chain)
    firsts, decodes, hashes = [], [], []
    for _ in range(config.decisions):
        prompt = PromptView(token_ids, num_tokens + 100, "")
        began_s = time.perf_counter()
        prompt.cached_tokens(workers[0])
        hashed_s = time.perf_counter()
        route = choose_route(Fleet(workers, workers), prompt, (), any_role=False, policy=policy)
        routed_s = time.perf_counter()
        assert isinstance(route, Route), route
        pick_decode(workers, route.worker, prompt, (), policy)
        decodes.append(time.perf_counter() - routed_s)
        firsts.append(routed_s - hashed_s)
        hashes.append(hashed_s - began_s)
    first, decode, hashed = (statistics.median(times) * 1e6 for times in (firsts, decodes, hashes))
    return Decisions(num_workers, num_tokens, first, decode, hashed)


def _fleet(config: RouterBenchConfig, num_workers: int, chain: Sequence[bytes]) -> list[WorkerView]:
    share = config.cached_blocks // num_workers
    return [
        _worker(number, {*(chain if number < config.holders else ()), *_other_blocks(number, share)})
        for number in range(num_workers)
    ]


def _other_blocks(number: int, count: int) -> list[bytes]:
    return [b"%08d%08d" % (number, block) for block in range(count)]


def _worker(number: int, cached: set[bytes]) -> WorkerView:
    return WorkerView(
        name=f"worker-{number}",
        role=Role.DECODE if number % 2 else Role.PREFILL,
        model=MODEL,
        transfer_protocol=1,
        layout_fingerprint=b"layout",
        block_size=BLOCK_SIZE,
        num_blocks=LARGEST_CONTEXT // BLOCK_SIZE,
        max_context=LARGEST_CONTEXT,
        max_num_seqs=64,
        queued_requests=number % 5,
        queued_prefill_tokens=100 * (number % 5),
        running_sequences=number % 7,
        available_blocks=LARGEST_CONTEXT // BLOCK_SIZE,
        prefill_speed=PrefillSpeed(0.01, 0.001),
        cached_blocks=cached,
        last_used=number,
    )
