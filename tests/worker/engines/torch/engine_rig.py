"""Real engines in this process, and a master's end that tests can wait on."""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.server import TransferServer
from protos.sampling_messages import FinishReason, SamplingParams, TokenLogprobs
from protos.session_messages import Failure, LegUpdate, Prefilled, Stage, Start, Started, Transferred
from tests.cluster import eventually
from tests.worker.engines.torch.reference import prompt
from worker.config import WorkerConfig
from worker.engines.torch.assembly import assemble
from worker.engines.torch.faulty_runner import FaultyRunner
from worker.engines.torch.llama_network import LlamaNetwork
from worker.engines.torch.runner import ModelRunner, StepLogits
from worker.engines.torch.scheduler import Chunk
from worker.faults.plan import NO_FAULTS, FaultPlan
from worker.legs.cache_news import CacheNews
from worker.legs.leg_life import Legs

HOST = "127.0.0.1"
PATIENCE_S = 30.0
BLOCK_SIZE = 16

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
SEEDED = SamplingParams(max_tokens=20, temperature=1.0, top_p=0.95, seed=7)


@dataclass
class Outcome:
    """Everything a master was told about one leg."""

    num_updates: int = 0
    started: Started | None = None
    prefilled: Prefilled | None = None
    transferred: Transferred | None = None
    failure: Failure | None = None
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    first_position: int | None = None  # of the first token told
    ended: bool = False  # nothing is held for it

    def add(self, update: LegUpdate) -> None:
        self.ended |= update.ended
        if update == LegUpdate(update.leg, ended=True):
            return
        assert self.failure is None, f"{update} came after {self.failure}"
        self.num_updates += 1
        for name in ("started", "prefilled", "transferred"):
            if (news := getattr(update, name)) is not None:
                assert getattr(self, name) is None, f"{name} twice"
                setattr(self, name, news)
        self.failure = update.failure
        self.prompt_logprobs += update.prompt_logprobs
        for delta in update.deltas:
            assert delta.sequence not in self.finish_reasons, f"{delta} came after the end"
            known = self.token_ids.setdefault(delta.sequence, [])
            if self.first_position is None:
                self.first_position = delta.position
            assert delta.position - self.first_position == len(known), f"{delta} does not follow {len(known)} tokens"
            known += delta.token_ids
            self.logprobs.setdefault(delta.sequence, []).extend(delta.logprobs)
            if delta.finish_reason is not None:
                self.finish_reasons[delta.sequence] = delta.finish_reason

    @property
    def kv_handle(self) -> bytes:
        assert self.started is not None and self.started.kv_handle is not None
        return self.started.kv_handle


class Master:
    """A link that remembers. `react` runs on the engine thread, before the engine's next step."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outcomes: dict[int, Outcome] = {}
        self._react: Callable[[LegUpdate], None] | None = None
        self.problem: AssertionError | None = None  # found on the engine thread, raised on the test's
        self.cached: set[bytes] = set()
        self.num_snapshots = 0

    def deliver(self, updates: Sequence[LegUpdate], news: CacheNews | None) -> None:
        with self._changed:
            try:
                self._take(updates, news)
            except AssertionError as error:
                self.problem = error
            self._changed.notify_all()
        for update in updates:
            if self._react is not None:
                self._react(update)

    def _take(self, updates: Sequence[LegUpdate], news: CacheNews | None) -> None:
        for update in updates:
            self._outcomes.setdefault(update.leg, Outcome()).add(update)
        if news is not None:
            assert self.cached.isdisjoint(news.stored) and self.cached.issuperset(news.removed), f"{news} is none"
            self.cached ^= {*news.stored, *news.removed}

    def deliver_cache_snapshot(self, hashes: Sequence[bytes]) -> None:
        with self._changed:
            self.cached = set(hashes)
            self.num_snapshots += 1
            self._changed.notify_all()

    def wait_for_snapshot(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_snapshots > 0, PATIENCE_S), "no snapshot in time"

    def on_update(self, react: Callable[[LegUpdate], None]) -> None:
        self._react = react

    def once(self, condition: Callable[[LegUpdate], bool], act: Callable[[LegUpdate], None]) -> None:
        """Acts between the step in which the condition came to hold and the next one."""
        is_done = False

        def react(update: LegUpdate) -> None:
            nonlocal is_done
            if not is_done and condition(update):
                is_done = True
                act(update)

        self.on_update(react)

    def outcome(self, leg: int) -> Outcome:
        with self._changed:
            return self._outcomes.setdefault(leg, Outcome())

    def wait(self, leg: int, condition: Callable[[Outcome], bool]) -> Outcome:
        """The leg's outcome as soon as the condition holds."""
        with self._changed:
            outcome = self._outcomes.setdefault(leg, Outcome())
            is_there = self._changed.wait_for(lambda: self.problem is not None or condition(outcome), PATIENCE_S)
            if self.problem is not None:
                raise self.problem
            assert is_there, f"not in time: {outcome}"
            return outcome

    def result(self, start: Start) -> Outcome:
        """When every sequence is finished, or the leg failed."""
        return self.wait(start.leg, lambda o: o.failure is not None or len(o.finish_reasons) == len(start.sequences))

    def failure(self, leg: int) -> Failure:
        failure = self.wait(leg, lambda o: o.failure is not None).failure
        assert failure is not None
        return failure


class Node:
    """One worker's engine with its transfer port; leaving the context checks that nothing is left behind."""

    def __init__(self, model: Path, faults: FaultPlan = NO_FAULTS, /, **flags: object) -> None:
        defaults: dict[str, object] = {
            "etcd_addr": None,
            "transfer_listen_port": 0,
            "num_threads": 1,
            "num_blocks": 200,
            "block_size": BLOCK_SIZE,
        }
        if (step := flags.get("max_tokens_per_step")) is not None:
            defaults["max_num_seqs"] = step
        config = WorkerConfig(model=model, **{**defaults, **flags})  # type: ignore[arg-type]
        self.engine = assemble(config, HOST, faults)
        self.legs = Legs(self.engine, config.leg_limits)
        self.pool = self.engine.pool
        self.layout = self.runner._memory.layout
        self.master = Master()
        self._numbers = itertools.count(1)
        self._is_running = False

    @property
    def runner(self) -> ModelRunner:
        runner = self.engine._runner
        if isinstance(runner, FaultyRunner):
            runner = runner._runner
        assert isinstance(runner, ModelRunner)
        return runner

    @property
    def embedding(self) -> torch.Tensor:
        """[vocabulary, width], to be written to: a row of NaN makes NaN of what sees that token."""
        network: Any = self.runner._forward._network  # type: ignore[union-attr]
        if isinstance(network, LlamaNetwork):
            weight: torch.Tensor = network._embedding.weight  # type: ignore[assignment]
        else:
            weight = network._model.get_input_embeddings().weight
        return weight

    def __enter__(self) -> Self:
        self.engine.start(self.legs)
        self._is_running = True
        self.legs.attach(self.master)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._is_running:
                self.quiesce()
        finally:
            self.close()

    def close(self) -> None:
        if self._is_running:
            self._is_running = False
            assert self.engine.stop(PATIENCE_S)
            self.pool.check()
            assert self.pool.num_held == 0, f"{self.pool.num_held} blocks are held after stop"

    def quiesce(self) -> None:
        """Waits until no leg is left; checks that no block, export or queued sequence is either."""
        self.flush()
        eventually(lambda: self.legs.num_unreleased == 0, "every leg is released")
        self.flush()
        self.pool.check()
        load = self.engine.load
        held = (load.queued_requests, load.running_sequences, load.exports, load.held_blocks)
        assert held == (0, 0, 0, 0), load
        assert self.engine.port.sent.num_open_exports == 0
        assert self.pool.num_free + self.pool.num_cached == self.pool.num_blocks

    def start(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams = GREEDY,
        stage: Stage = Stage.WHOLE,
        *,
        output_ids: Sequence[int] = (),
        sequences: tuple[int, ...] = (0,),
        priority: int = 0,
        cache_salt: str = "",
        time_limit_s: float = 60.0,
        kv_handle: bytes | None = None,
        age_s: float = 0.0,
    ) -> Start:
        """Begin a leg."""
        number = next(self._numbers)
        start = Start(
            leg=number,
            request_id=f"request-{number}",
            stage=stage,
            prompt_ids=tuple(prompt_ids),
            sampling=sampling,
            output_ids=tuple(output_ids),
            sequences=sequences,
            priority=priority,
            cache_salt=cache_salt,
            time_limit_s=time_limit_s,
            kv_handle=kv_handle,
            age_s=age_s,
        )
        self.legs.begin(self.master, start)
        return start

    def run(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        output_ids: Sequence[int] = (),
        sequences: tuple[int, ...] = (0,),
        cache_salt: str = "",
    ) -> Outcome:
        """A whole leg; it must not fail."""
        start = self.start(prompt_ids, sampling, output_ids=output_ids, sequences=sequences, cache_salt=cache_salt)
        outcome = self.master.result(start)
        assert outcome.failure is None, outcome.failure
        return outcome

    def cancel(self, start: Start, sequence: int | None = None) -> None:
        self.legs.cancel(self.master, start.leg, sequence)

    def flush(self) -> None:
        """Returns when everything asked of the engine before has been done."""
        probe = Master()
        self.legs.attach(probe)
        probe.wait_for_snapshot()
        self.legs.detach(probe)


def hand_off(
    prefill: Node,
    decode: Node,
    prompt_ids: Sequence[int],
    sampling: SamplingParams = GREEDY,
    *,
    output_ids: Sequence[int] = (),
    sequences: tuple[int, ...] = (0,),
    cache_salt: str = "",
) -> tuple[Outcome, Outcome]:
    """One request over two workers, as a master runs it; (outcome on the prefill worker, on the decode worker)."""
    first = prefill.start(
        prompt_ids, sampling, Stage.PREFILL, output_ids=output_ids, sequences=sequences, cache_salt=cache_salt
    )
    source = prefill.master.wait(first.leg, lambda o: o.started is not None).kv_handle
    second = decode.start(
        prompt_ids,
        sampling,
        Stage.DECODE,
        output_ids=output_ids,
        sequences=sequences,
        cache_salt=cache_salt,
        kv_handle=source,
    )
    decoded = decode.master.result(second)
    assert decoded.failure is None, decoded.failure
    prefilled = prefill.master.wait(first.leg, lambda o: len(o.token_ids) == len(sequences))
    return prefilled, decoded


def offer(node: Node, sampling: SamplingParams = GREEDY, sequences: tuple[int, ...] = (0,)) -> Start:
    """A leg whose prefill is complete and whose KV waits to be pulled."""
    start = node.start(prompt(40), sampling, Stage.PREFILL, sequences=sequences)
    node.master.wait(start.leg, lambda o: len(o.token_ids) == len(sequences))
    return start


@contextmanager
def held_step(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps of the node's model last until the context is left; the event is set when one has begun."""
    is_held, may_go_on = threading.Event(), threading.Event()
    compute = node.engine._runner.step

    def held(chunks: Sequence[Chunk]) -> StepLogits:
        is_held.set()
        assert may_go_on.wait(PATIENCE_S)
        return compute(chunks)

    monkeypatch.setattr(node.engine._runner, "step", held)
    try:
        yield is_held
    finally:
        may_go_on.set()


class ForeignPrefill:
    """A transfer server like that of a worker with `node`'s model, whose exports the test fills by hand."""

    def __init__(self, node: Node) -> None:
        layout = node.layout
        self.memory = PoolMemory(layout, 16)
        self.server = TransferServer(self.memory, layout.fingerprint(), HOST, 0)
        self.released: queue.SimpleQueue[ReleaseReason] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()

    def open(self) -> tuple[Export, bytes]:
        export = self.server.open(1, self.released.put)
        return export, export.handle.encode()
