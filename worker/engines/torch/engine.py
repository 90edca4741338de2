"""The engine: one thread that owns the model, the block pool and every leg.

    while not stopping:
        run the commands that came in
        batch = what the scheduler chooses
        compute it, choose tokens, publish what came out

Sockets and transfers run on other threads and post commands.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from kvcache.block_pool import CacheEventKind
from protos.sampling_messages import TokenLogprobs
from protos.session_messages import ErrorCode, LoadReport, Role, Start
from worker.engines.torch.grammar import Grammars
from worker.engines.torch.kv_transfer import KvPort
from worker.engines.torch.limits import EngineLimits
from worker.engines.torch.runner import ModelRunner, StepLogits
from worker.engines.torch.sampler import SampledToken, SamplingError, SamplingRow, sample, token_logprobs
from worker.engines.torch.scheduler import Chunk, Scheduler, StepBatch
from worker.engines.torch.stats import EngineStats
from worker.legs.leg import Link, Phase, Sequence
from worker.legs.leg_life import Legs

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5  # how late a time limit may be noticed while nothing runs


class Engine:
    """Between `start` and `stop` any thread may call the methods; they post a command and return at once."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        port: KvPort,
        limits: EngineLimits,
        grammars: Grammars,
        *,
        model_name: str,
        role: Role,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._port = port
        self._role = role
        self._commands: deque[Callable[[], None]] = deque()
        self._has_commands = threading.Event()
        self._is_stopping = False
        self._links: set[Link] = set()
        self._grammars = grammars
        self._legs = Legs(scheduler, port, limits, grammars, model_name, post=self._post, copy_block=runner.copy_block)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.stats = EngineStats()
        self.last_progress_s = time.monotonic()
        self.load = self._measure_load()

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.num_preemptions

    @property
    def num_legs(self) -> int:
        """Legs that run or still hold blocks."""
        return self._legs.num_unreleased

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every leg without telling its master why; returns when their blocks are released."""
        self._post(self._on_stop)
        self._thread.join()
        self._grammars.close()

    def join(self) -> None:
        """Blocks until the engine has ended, by `stop` or by a fault of ours."""
        self._thread.join()

    def attach(self, link: Link) -> None:
        """A master connected; it gets a snapshot of the prefix cache."""
        self._post(partial(self._on_attach, link))

    def detach(self, link: Link) -> None:
        """The master is gone: abort its work."""
        self._post(partial(self._on_detach, link))

    def begin(self, link: Link, start: Start) -> None:
        self._post(partial(self._legs.begin, link, start))

    def cancel(self, link: Link, leg: int, sequence: int | None) -> None:
        """Unknown legs are ignored: their end is on its way to the master."""
        self._post(partial(self._legs.cancel, link, leg, sequence))

    def decode_here(self, link: Link, leg: int) -> None:
        self._post(partial(self._legs.decode_here, link, leg))

    def drain(self) -> None:
        """Refuse legs from now on."""
        self._post(self._legs.drain)

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._has_commands.set()

    # --- the loop

    def _run(self) -> None:
        can_run = False
        while not (self._is_stopping and self._legs.num_unreleased == 0):
            if not can_run:
                self._has_commands.wait(IDLE_WAIT_S)
            self._has_commands.clear()
            while self._commands:
                self._commands.popleft()()
            self._legs.end_overdue(time.monotonic())
            batch = self._scheduler.next_batch()
            for sequence in batch.admitted:
                self._legs.on_admitted(sequence)
            if batch.admitted:
                self._publish()  # a decode worker can be chosen, and begin to pull, while this step computes
            if batch.chunks:
                self._compute(batch)
            can_run = bool(batch.chunks)
            self.last_progress_s = time.monotonic()
            self.load = self._measure_load()
            self._publish()

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
                self._legs.fail(chunk.sequence.leg, ErrorCode.INTERNAL, f"engine step failed: {error}")
            return
        self.stats.count_step(batch.chunks, time.monotonic() - started_s)
        for index, chunk in enumerate(batch.chunks):
            leg, is_last = chunk.sequence.leg, chunk.is_last
            if leg.phase is Phase.ENDED:
                continue  # another of its sequences failed in this step
            if index in prompt_logprobs:
                self._legs.report_prompt_logprobs(leg, *prompt_logprobs[index])
            chosen = tokens.get(chunk.sequence, [])
            if isinstance(chosen, SamplingError):
                # Its KV may be what is wrong: it must not get into the prefix cache.
                self._legs.fail(leg, chosen.code, str(chosen))
                continue
            self._scheduler.advance(chunk)
            if is_last:
                self._legs.take_tokens(chunk.sequence, chosen)
            else:
                self._legs.publish_blocks(leg)

    def _choose(self, batch: StepBatch, logits: StepLogits) -> dict[Sequence, list[SampledToken] | SamplingError]:
        """The next token of each sequence that got its last chunk; after a shared prefill one for each sequence."""
        chosen: dict[Sequence, list[SampledToken] | SamplingError] = {}
        last = [chunk.sequence for chunk in batch.chunks if chunk.is_last]
        takers = [[s] if s.leg.is_prefilled else s.leg.sequences for s in last]
        rows = [(index, taker) for index, group in enumerate(takers) for taker in group]
        if not rows:
            return chosen
        picked = logits.last if len(rows) == len(last) else logits.last[[index for index, _ in rows]]
        for (index, _), token in zip(rows, sample(picked, [_sampling_row(s) for _, s in rows]), strict=True):
            tokens = chosen.setdefault(last[index], [])
            if isinstance(token, SamplingError) or isinstance(tokens, SamplingError):
                chosen[last[index]] = token if isinstance(token, SamplingError) else tokens
            else:
                tokens.append(token)
        return chosen

    def _publish(self) -> None:
        updates = self._legs.take_updates()
        events = self._scheduler.pool.drain_events()
        if any(event.kind is CacheEventKind.RESET for event in events):
            events = []
            snapshot = self._scheduler.pool.snapshot()
            for link in self._links:
                link.deliver_cache_snapshot(snapshot)
        for link in self._links if events else updates.keys() & self._links:
            link.deliver(updates.get(link, []), events)

    # --- commands

    def _on_attach(self, link: Link) -> None:
        self._publish()  # else the new link would get changes that are in its snapshot already
        self._links.add(link)
        link.deliver_cache_snapshot(self._scheduler.pool.snapshot())

    def _on_detach(self, link: Link) -> None:
        self._links.discard(link)
        self._legs.drop_link(link)

    def _on_stop(self) -> None:
        self._is_stopping = True
        self._legs.drain()
        self._legs.end_all()

    def _measure_load(self) -> LoadReport:
        pool = self._scheduler.pool
        return LoadReport(
            role=self._role,
            queued_requests=self._scheduler.num_waiting,
            queued_prefill_tokens=self._scheduler.num_queued_tokens,
            running_sequences=self._scheduler.num_running,
            available_blocks=pool.num_available,
            held_blocks=pool.num_held,
            steps=self.stats.num_steps,
            decode_step_s=self.stats.decode_step_s,
            prefill=self.stats.prefill_speed,
            exports=self._legs.num_exports,
            is_draining=self._legs.is_draining,
            transfer=self._port.counters(),
        )


def _sampling_row(sequence: Sequence) -> SamplingRow:
    start = sequence.leg.start
    return SamplingRow(start.sampling, sequence.index, start.prompt_ids, sequence.output_ids, sequence.grammar)


def _prompt_logprobs(chunk: Chunk, logits: torch.Tensor) -> tuple[int, list[TokenLogprobs]]:
    """(position of the first entry, entries); the prompt's first token has none, as nothing comes before it."""
    sequence = chunk.sequence
    num_top = sequence.leg.start.sampling.prompt_logprobs
    assert num_top is not None
    first = sequence.num_computed + 1
    entries = [token_logprobs(row, sequence.token_ids[first + offset], num_top) for offset, row in enumerate(logits)]
    return (0, [TokenLogprobs(), *entries]) if first == 1 else (first, entries)
