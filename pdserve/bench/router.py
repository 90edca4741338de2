"""`pdserve bench router`: what one routing decision costs a master, by the size of the fleet.

The workers are figures only. Before each decision one of them reports another load, as workers do all the time, and
the decision ends with a leg on the worker that was chosen.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from prometheus_client import CollectorRegistry

from config import checks
from config.flags import flag
from master.dispatch.flags import DispatchFlags
from master.dispatch.metrics import DispatchMetrics
from master.dispatch.routes import RouteAsk, Routes
from master.routing.fleet_health import FleetHealth
from master.routing.policies import soonest
from master.routing.prefix_index import HeldBlocks, PrefixIndex
from master.routing.suspects import Suspects
from master.routing.views import PromptView, WorkerView
from protos.block_hash import HASH_BYTES, extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role

MODEL = "measured"
BLOCK_SIZE = 16
POOL_BLOCKS = 1 << 20


@dataclass(frozen=True)
class RouterBenchConfig:
    workers: tuple[int, ...] = flag((10, 100, 1000), "Sizes of the fleet, half of it for each stage", group="Load")
    blocks: int = flag(1_000_000, "Blocks that the fleet has cached", group="Load", check=checks.at_least(0))
    prompt_tokens: int = flag(1000, "Length of a prompt", group="Load", check=checks.at_least(1))
    long_prompt_tokens: int = flag(
        100_000, "Length of the prompt that forty workers have cached", group="Load", check=checks.at_least(1)
    )
    decisions: int = flag(500, "How many are timed", group="Load", check=checks.at_least(1))


@dataclass(frozen=True, slots=True)
class Decisions:
    """Median CPU time of this thread: of both choices for a new prompt, and for the long one, which is hashed once.

    `hashing_ms` is what that takes, in a thread.
    """

    workers: int
    first_us: float
    decode_us: float
    long_first_us: float
    long_decode_us: float
    hashing_ms: float


class _Fleet:
    """Stands in for sessions with workers."""

    def __init__(self, num_workers: int, prefixes: PrefixIndex) -> None:
        self.prefixes = prefixes
        self.num_changes = 0
        self.is_complete = True
        self._changed: list[WorkerView] = []
        self._views = {view.name: view for view in (self._worker(number) for number in range(num_workers))}
        self._held = {name: HeldBlocks(prefixes, name) for name in self._views}

    @property
    def names(self) -> Collection[str]:
        return self._views.keys()

    def views(self, model: str | None = None) -> list[WorkerView]:
        return list(self._views.values())

    def take_changed(self) -> list[WorkerView]:
        changed, self._changed = self._changed, []
        return changed

    async def changed(self) -> None:
        await asyncio.Event().wait()

    def report(self, name: str, **load: int) -> None:
        view = replace(self._views[name], cached_blocks=self._held[name].blocks, **load)  # type: ignore[arg-type]
        self._views[name] = view
        self._changed.append(view)

    def store(self, name: str, blocks: list[bytes]) -> None:
        self._held[name].add(blocks)
        self.report(name)

    @staticmethod
    def _worker(number: int) -> WorkerView:
        return WorkerView(
            name=f"worker-{number}",
            role=Role.DECODE if number % 2 else Role.PREFILL,
            model=MODEL,
            transfer_protocol=1,
            layout_fingerprint=b"layout",
            block_size=BLOCK_SIZE,
            num_blocks=POOL_BLOCKS,
            max_context=1 << 20,
            max_num_seqs=1024,
            queued_requests=0,
            queued_prefill_tokens=0,
            running_sequences=0,
            available_blocks=POOL_BLOCKS,
            prefill_speed=PrefillSpeed(0.01, 0.0001),
            cached_blocks=frozenset(),
            last_used=0,
        )


def bench_router(config: RouterBenchConfig) -> int:
    """Prints JSON."""
    measured = [asdict(_measure(config, num_workers)) for num_workers in config.workers]
    print(json.dumps({"cached_blocks": config.blocks, "fleets": measured}, indent=2))
    return 0


def _measure(config: RouterBenchConfig, num_workers: int) -> Decisions:
    choose = random.Random(1)
    fleet = _Fleet(num_workers, PrefixIndex(max(1, config.blocks) + config.long_prompt_tokens))
    names = list(fleet.names)
    for name in names:
        fleet.store(name, [choose.randbytes(HASH_BYTES) for _ in range(config.blocks // num_workers)])
    long_ids = tuple(range(config.long_prompt_tokens))
    long_chain: list[bytes] = []
    began_s = time.thread_time()
    extend_chain(long_chain, root_hash(MODEL), long_ids, len(long_ids), BLOCK_SIZE)
    hashing_s = time.thread_time() - began_s
    for name in names[:40]:
        fleet.store(name, long_chain)
    metrics = DispatchMetrics(CollectorRegistry())
    routes = Routes(fleet, FleetHealth(), Suspects(), DispatchFlags(), soonest, metrics)
    new = [_prompt([choose.randrange(50_000) for _ in range(config.prompt_tokens)]) for _ in range(config.decisions)]
    long = _prompt(long_ids)
    asyncio.run(routes.find(RouteAsk("first", long)))
    first_us, decode_us = _decide(fleet, routes, new, choose)
    long_first_us, long_decode_us = _decide(fleet, routes, [long] * config.decisions, choose)
    return Decisions(num_workers, first_us, decode_us, long_first_us, long_decode_us, hashing_s * 1e3)


def _prompt(token_ids: list[int] | tuple[int, ...]) -> PromptView:
    return PromptView(token_ids, len(token_ids) + 64, "")


def _decide(fleet: _Fleet, routes: Routes, prompts: list[PromptView], choose: random.Random) -> tuple[float, float]:
    """Median microseconds of the first choice and of the decode choice."""
    names = list(fleet.names)

    async def decide() -> tuple[float, float]:
        firsts_s, decodes_s = [], []
        for number, prompt in enumerate(prompts, 1):
            fleet.report(choose.choice(names), running_sequences=choose.randrange(60))
            began_s = time.thread_time()
            route = await routes.find(RouteAsk(f"request-{number}", prompt))
            chosen_s = time.thread_time()
            taker = routes.pick_decode(f"request-{number}", route.worker, prompt, ())
            decodes_s.append(time.thread_time() - chosen_s)
            firsts_s.append(chosen_s - began_s)
            assert taker is not None
            fleet.report(route.worker.name, last_used=number)
            fleet.report(taker.name, last_used=number)
        return statistics.median(firsts_s) * 1e6, statistics.median(decodes_s) * 1e6

    return asyncio.run(decide())
