"""`pdserve bench engine`: what an engine computes in a second, with no server around it.

A prompt by itself, and then sequences whose steps are timed together. Prompts are random, so that nothing is in a
prefix cache.
"""

import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from config import checks
from config.flags import FlagError, flag
from pdserve.bench.step_watch import StepWatch
from pdserve.demo_model import default_cache_dir, ensure_demo_model
from protos.block_hash import root_hash
from protos.sampling_messages import SamplingParams
from protos.session_messages import Stage
from worker.config import WorkerConfig
from worker.engines.compute_engine import ComputeEngine, Run
from worker.engines.table import chosen
from worker.faults.plan import NO_FAULTS

FIRST_TOKEN_ID = 100  # below are a tokenizer's special tokens
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class EngineBenchConfig(WorkerConfig):
    """A worker's flags say which engine; its model is the demo model by default."""

    transfer_listen_port: int = flag(0, "Port for KV transfer; 0 picks a free one", group="Network", check=checks.port)
    prefill_tokens: int = flag(512, "Length of the prompt that is timed", group="Load", check=checks.at_least(1))
    sequences: tuple[int, ...] = flag((1, 8, 16), "How many decode together", group="Load")
    prompt_tokens: int = flag(128, "Length of each one's prompt", group="Load", check=checks.at_least(1))
    steps: int = flag(24, "How many of their steps are timed", group="Load", check=checks.at_least(1))
    repeats: int = flag(3, "The fastest of so many counts", group="Load", check=checks.at_least(1))
    sampling: tuple[str, ...] = flag(("temperature=0",), "Parameters, such as temperature=0.7", group="Load")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampling_params()

    def sampling_params(self) -> SamplingParams:
        """Raises FlagError for one that is no number, or has another name."""
        numbers = {option.name: type(option.default) for option in fields(SamplingParams)}
        given: dict[str, Any] = {}
        for assignment in self.sampling:
            name, _, value = assignment.partition("=")
            try:
                given[name] = {int: int, float: float}[numbers[name]](value)
            except (KeyError, ValueError) as error:
                raise FlagError("sampling", f"{assignment!r} does not set a number that is sampled by") from error
        return SamplingParams(**given)


@dataclass(frozen=True, slots=True)
class Decodes:
    """`step_ms` is the median step; `cores` what the process kept busy meanwhile."""

    sequences: int
    prompt_tokens: int
    step_ms: float
    tokens_per_s: float
    cores: float


@dataclass(frozen=True, slots=True)
class EngineReport:
    """`start_s`: from nothing imported to a started engine. `first_token_s`: of the prompt that is timed."""

    start_s: float
    prefill_tokens: int
    first_token_s: float
    prefill_tokens_per_s: float
    decodes: tuple[Decodes, ...]


def bench_engine(config: EngineBenchConfig) -> int:
    """Prints JSON. Raises FlagError for an engine that can't be had, EngineFailed for one that fails."""
    started_s = time.monotonic()
    config = replace(config, model=config.model or ensure_demo_model(default_cache_dir(), partial(print, flush=True)))
    engine = chosen(config.engine)(config, config.host, NO_FAULTS)
    watch = StepWatch()
    engine.start(watch)
    bench = EngineBench(engine, watch, config)
    try:
        start_s = time.monotonic() - started_s
        first_token_s = min(bench.first_token_s(config.prefill_tokens) for _ in range(config.repeats))
        decodes = tuple(
            min((bench.decodes(count) for _ in range(config.repeats)), key=lambda found: found.step_ms)
            for count in config.sequences
        )
    finally:
        engine.stop(STOP_TIMEOUT_S)
    speed = config.prefill_tokens / first_token_s
    print(json.dumps(asdict(EngineReport(start_s, config.prefill_tokens, first_token_s, speed, decodes))))
    return 0


class EngineBench:
    def __init__(self, engine: ComputeEngine, watch: StepWatch, config: EngineBenchConfig) -> None:
        self._engine = engine
        self._watch = watch
        self._config = config
        self._choose = random.Random(0)
        self._numbers = itertools.count(1)

    def first_token_s(self, num_tokens: int) -> float:
        """Time from a prompt's arrival to its first token, alone."""
        began_s = time.monotonic()
        self._add(self._run(num_tokens, 1))
        turn = self._watch.next_turn()
        while not turn.num_tokens:
            turn = self._watch.next_turn()
        self._wait_for_releases(1 - turn.num_released)
        return turn.ended_s - began_s

    def decodes(self, num_sequences: int) -> Decodes:
        """Steps in which all of `num_sequences` get a token."""
        config = self._config
        # Prompts share steps, and the first to be done decodes while others are not; nobody may end before the last.
        num_steps = config.steps + 2 + num_sequences * config.prompt_tokens // config.max_tokens_per_step
        runs = [self._run(config.prompt_tokens, num_steps + 2) for _ in range(num_sequences)]
        self._add(*runs)
        whole = self._whole_steps(num_sequences)
        ends_s, began_cpu_s = [next(whole)], time.process_time()
        ends_s += itertools.islice(whole, config.steps)
        cpu_s = time.process_time() - began_cpu_s
        for run in runs:
            self._engine.post(partial(self._engine.abort, run, "measured"))
        self._wait_for_releases(num_sequences)
        step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(ends_s))
        cores = cpu_s / (ends_s[-1] - ends_s[0])
        return Decodes(num_sequences, config.prompt_tokens, step_s * 1e3, num_sequences / step_s, cores)

    def _whole_steps(self, num_sequences: int) -> Iterator[float]:
        """When steps ended in which each sequence got a token."""
        while True:
            turn = self._watch.next_turn()
            if turn.num_tokens == num_sequences:
                yield turn.ended_s

    def _wait_for_releases(self, count: int) -> None:
        while count > 0:
            count -= self._watch.next_turn().num_released

    def _add(self, *runs: Run) -> None:
        def add() -> None:
            for run in runs:
                self._engine.add(run)

        self._engine.post(add)

    def _run(self, num_prompt_tokens: int, max_tokens: int) -> Run:
        vocab_size = self._engine.limits.vocab_size
        number = next(self._numbers)
        return Run(
            number=number,
            stage=Stage.WHOLE,
            prompt_ids=tuple(
                self._choose.randrange(min(FIRST_TOKEN_ID, vocab_size - 1), vocab_size)
                for _ in range(num_prompt_tokens)
            ),
            output_ids=(),
            sequences=(0,),
            sampling=replace(self._config.sampling_params(), max_tokens=max_tokens, seed=number),
            priority=0,
            requested_s=time.monotonic(),
            root=root_hash(self._engine.identity.model.identity, ""),
            kv_handle=None,
        )
