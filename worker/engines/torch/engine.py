"""The native engine: one thread that owns the model, the block pool and every sequence.

    while not stopping:
        run the commands that came in
        batch = what the scheduler chooses
        compute it, choose tokens, tell the sink what came out

Transfers run on other threads and post commands.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch

from kvcache.block_pool import BlockPool
from protos.sampling_messages import TokenLogprobs
from protos.session_messages import ErrorCode, Failure, LoadReport
from worker.engines.compute_engine import (
    EngineFigures,
    EngineIdentity,
    EngineSink,
    Run,
    TransferFigures,
)
from worker.engines.limits import EngineLimits
from worker.engines.torch.grammar import Grammars
from worker.engines.torch.groups import SequenceGroups
from worker.engines.torch.kv_transfer import KvPort
from worker.engines.torch.runner import StepLogits, StepRunner
from worker.engines.torch.sampling.sampler import SampledToken, Sampler, SamplingError, SamplingRow, token_logprobs
from worker.engines.torch.scheduler import Chunk, Scheduler, StepBatch
from worker.engines.torch.sequence import Phase, Sequence
from worker.engines.torch.stats import EngineStats

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # how late a time limit may be noticed while nothing runs


class TorchEngine:
    """A ComputeEngine over a started transfer port."""

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        port: KvPort,
        grammars: Grammars,
        sampler: Sampler,
        *,
        identity: EngineIdentity,
        limits: EngineLimits,
    ) -> None:
        self.identity = identity
        self.limits = limits
        self.stats = EngineStats()
        self.last_progress_s = time.monotonic()
        self._runner = runner
        self._scheduler = scheduler
        self._port = port
        self._grammars = grammars
        self._sampler = sampler
        self._commands: deque[Callable[[], None]] = deque()
        self._has_commands = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.load = LoadReport()
        port.death.add_done_callback(self._on_port_death)

    @property
    def pool(self) -> BlockPool:
        return self._scheduler.pool

    @property
    def port(self) -> KvPort:
        return self._port

    @property
    def figures(self) -> EngineFigures:
        return EngineFigures(
            free_blocks=self.pool.num_free,
            cached_blocks=self.pool.num_cached,
            held_blocks=self.pool.num_held,
            num_steps=self.stats.num_steps,
            num_preemptions=self._scheduler.num_preemptions,
            num_prefill_tokens=self.stats.num_prefill_tokens,
            num_decode_tokens=self.stats.num_decode_tokens,
        )

    @property
    def transfers(self) -> TransferFigures:
        return TransferFigures(self._port.sent, self._port.counters(), self._port.times())

    def start(self, sink: EngineSink) -> None:
        self._sink = sink
        self._groups = SequenceGroups(
            self._scheduler,
            self._port,
            self._grammars,
            sink,
            post=self.post,
            copy_block=self._runner.copy_block,
        )
        self.load = self._measure_load()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        self.post(self._on_stop)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False  # whatever it hangs on may still write into blocks that are on offer
        self._grammars.close()
        self._port.close()
        return True

    def join(self) -> None:
        self._thread.join()

    def post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._has_commands.set()

    def add(self, run: Run) -> None:
        if self._is_stopping:
            self._sink.failed(run, Failure(ErrorCode.UNAVAILABLE, "the worker stops"))
            self._sink.released(run)
        else:
            self._groups.add(run)

    def cancel(self, run: Run, sequence: int) -> None:
        self._groups.cancel(run, sequence)

    def abort(self, run: Run, text: str) -> None:
        self._groups.abort(run, text)

    def decode_here(self, run: Run) -> bool:
        return self._groups.decode_here(run)

    def cached_blocks(self) -> list[bytes]:
        self._turn()
        return self.pool.snapshot()

    def _run(self) -> None:
        can_run = False
        while not (self._is_stopping and len(self._groups) == 0):
            if not can_run:
                self._has_commands.wait(IDLE_WAIT_S)
            self._has_commands.clear()
            while self._commands:
                self._commands.popleft()()
            batch = self._scheduler.next_batch()
            for sequence in batch.admitted:
                self._groups.on_admitted(sequence)
            if batch.admitted:
                self._turn()  # a decode worker can be chosen, and begin to pull, while this step computes
            if batch.chunks:
                self._compute(batch)
            can_run = bool(batch.chunks)
            self.last_progress_s = time.monotonic()
            self.load = self._measure_load()
            self._turn()

    def _turn(self) -> None:
        self._sink.turned(self.pool.drain_events())

    def _on_port_death(self, death: "Future[None]") -> None:
        """Ends the engine, and so the process: without a port nothing is handed over, and nothing released."""

        def die() -> None:
            raise RuntimeError("the transfer port died") from death.exception()

        self.post(die)

    def _on_stop(self) -> None:
        self._is_stopping = True
        self._groups.end_all()

    def _compute(self, batch: StepBatch) -> None:
        started_s = time.monotonic()
        try:
            logits = self._runner.step(batch.chunks)
            tokens = self._choose(batch, logits)
            prompt_logprobs = {
                index: _prompt_logprobs(batch.chunks[index], rows) for index, rows in logits.prompt.items()
            }
        except Exception as error:  # the model is not ours, and may raise anything
            logger.exception("a step of %d sequences failed", len(batch.chunks))
            for chunk in batch.chunks:
                self._groups.fail(chunk.sequence.group, ErrorCode.INTERNAL, f"engine step failed: {error}")
            return
        duration_s = time.monotonic() - started_s
        self.stats.count_step(batch.chunks, duration_s)
        self._scheduler.learn(batch.chunks, duration_s)
        for index, chunk in enumerate(batch.chunks):
            group, is_last = chunk.sequence.group, chunk.is_last
            if group.phase is Phase.ENDED:
                continue  # another of its sequences failed in this step
            if index in prompt_logprobs:
                self._groups.report_prompt_logprobs(group, *prompt_logprobs[index])
            chosen = tokens.get(chunk.sequence, [])
            if isinstance(chosen, SamplingError):
                self._groups.fail(group, chosen.code, str(chosen))
                continue
            self._scheduler.advance(chunk)
            if is_last:
                self._groups.take_tokens(chunk.sequence, chosen)
            else:
                self._groups.publish_blocks(group)

    def _choose(self, batch: StepBatch, logits: StepLogits) -> dict[Sequence, list[SampledToken] | SamplingError]:
        """The next token of each sequence that got its last chunk; after a shared prefill one for each sequence."""
        chosen: dict[Sequence, list[SampledToken] | SamplingError] = {}
        last = [chunk.sequence for chunk in batch.chunks if chunk.is_last]
        takers = [[s] if s.group.is_prefilled else s.group.sequences for s in last]
        rows = [(index, taker) for index, group in enumerate(takers) for taker in group]
        if not rows:
            return chosen
        picked = logits.last if len(rows) == len(last) else logits.last[[index for index, _ in rows]]
        tokens_of_rows = self._sampler.sample(picked, [_sampling_row(s) for _, s in rows])
        for (index, _), token in zip(rows, tokens_of_rows, strict=True):
            tokens = chosen.setdefault(last[index], [])
            if isinstance(token, SamplingError) or isinstance(tokens, SamplingError):
                chosen[last[index]] = token if isinstance(token, SamplingError) else tokens
            else:
                tokens.append(token)
        return chosen

    def _measure_load(self) -> LoadReport:
        return LoadReport(
            queued_requests=self._scheduler.num_waiting,
            queued_prefill_tokens=self._scheduler.num_queued_tokens,
            running_sequences=self._scheduler.num_running,
            available_blocks=self.pool.num_available,
            held_blocks=self.pool.num_held,
            steps=self.stats.num_steps,
            decode_step_s=self.stats.decode_step_s,
            prefill=self.stats.prefill_speed,
            exports=self._groups.num_exports,
            transfer=self._port.counters(),
        )


def _sampling_row(sequence: Sequence) -> SamplingRow:
    run = sequence.group.run
    return SamplingRow(run.sampling, sequence.index, sequence.seen, sequence.output_ids, sequence.grammar)


def _prompt_logprobs(chunk: Chunk, logits: torch.Tensor) -> tuple[int, list[TokenLogprobs]]:
    """(position of the first entry, entries); the prompt's first token has none, as nothing comes before it."""
    sequence = chunk.sequence
    num_top = sequence.group.run.sampling.prompt_logprobs
    assert num_top is not None
    first = sequence.num_computed + 1
    entries = [token_logprobs(row, sequence.token_ids[first + offset], num_top) for offset, row in enumerate(logits)]
    return (0, [TokenLogprobs(), *entries]) if first == 1 else (first, entries)
