"""Decides what each step computes, within a budget of tokens, and owns the blocks of the sequences it runs.

Decodes come first, so that a long prompt cannot stall running streams; prompts share what is left of the budget,
those that run and those that wait in one order. What is pulled needs no budget. A sequence gets the blocks for all its
tokens when it is admitted and never waits for blocks half-way through a prompt: together with a decode worker doing
the same for what it pulls, no cycle of waiting can arise. Only decoding grows, and where the pool is full the latest
decode gives up its blocks and is recomputed later.
"""

import heapq
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from kvcache.block_pool import BlockPool, OutOfBlocks
from worker.engines.torch.prompt_budget import PromptBudget
from worker.engines.torch.sequence import Sequence
from worker.engines.torch.step_ceiling import StepCeiling
from worker.engines.torch.waiting_line import LookAhead, WaitingLine


@dataclass(frozen=True, slots=True)
class Chunk:
    """`num_tokens` further tokens of a sequence, to be computed in one step."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the step yields the sequence's next token."""
        return self.num_tokens == self.sequence.num_uncomputed


@dataclass(frozen=True, slots=True)
class StepBatch:
    """`chunks` to compute now; `admitted` sequences got their blocks just now, those that pull among them."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...]


class Scheduler:
    """Single-threaded: the engine's."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        max_tokens_per_step: int,
        max_num_seqs: int,
        enable_chunked_prefill: bool,
        max_step_s: float | None = None,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._max_tokens_per_step = max_tokens_per_step
        self._max_num_seqs = max_num_seqs
        self._enable_chunked_prefill = enable_chunked_prefill
        self._ceiling = None if max_step_s is None else StepCeiling(max_step_s)
        self._waiting = WaitingLine()
        self._running: dict[Sequence, None] = {}
        self._pulling: set[Sequence] = set()
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running) + len(self._pulling)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens still to be prefilled, of waiting and running sequences."""
        return self._waiting.num_tokens + sum(s.num_uncomputed for s in self._running if s.num_uncomputed > 1)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence to be computed, or pulled if its run says so."""
        self._waiting.add(sequence)

    def next_batch(self) -> StepBatch:
        """What to compute now. Reserves blocks and may preempt; empty when nothing can run before something ends."""
        chunks = self._decodes()
        time = self._ceiling.budget() if self._ceiling is not None and chunks else None
        budget = PromptBudget(self._max_tokens_per_step - len(chunks), time, can_cut=self._enable_chunked_prefill)
        prompts = list(self._prompts())
        num_followers = sum(not sequence.group.is_pull for sequence in prompts)
        ahead = LookAhead()
        admitted: list[Sequence] = []
        for sequence in prompts:
            num_followers -= not sequence.group.is_pull
            if sequence not in self._running:
                if ahead.is_over or not self._is_room(sequence, budget):
                    continue
                if not self._admit(sequence):
                    ahead.pass_by(sequence)
                    continue
                ahead.let_in()
                admitted.append(sequence)
            if sequence in self._running:
                budget.take(sequence, num_followers > 0)
        chunks += [Chunk(sequence, share) for sequence, share in budget.shares().items()]
        return StepBatch(tuple(chunks), tuple(admitted))

    def _decodes(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        for sequence in sorted(self._running, key=lambda s: s.order):
            has_budget = len(chunks) < self._max_tokens_per_step
            if has_budget and sequence in self._running and sequence.num_uncomputed == 1 and self._grow(sequence):
                chunks.append(Chunk(sequence, 1))
        return chunks

    def _prompts(self) -> Iterator[Sequence]:
        """Those with more to compute than their newest token, running or waiting, and those that wait to pull."""
        prefilling = sorted((s for s in self._running if s.num_uncomputed > 1), key=lambda s: s.order)
        if self.num_running >= self._max_num_seqs:
            return iter(prefilling)  # nobody is let in
        return heapq.merge(prefilling, self._waiting, key=lambda s: s.order)

    def _is_room(self, sequence: Sequence, budget: PromptBudget) -> bool:
        """Whether another sequence may run, and would do something in this step."""
        return self.num_running < self._max_num_seqs and (sequence.group.is_pull or not budget.is_spent)

    def learn(self, chunks: Items[Chunk], duration_s: float) -> None:
        """The step took so long; its chunks have not advanced yet."""
        if self._ceiling is None:
            return
        prompts = [chunk for chunk in chunks if chunk.num_tokens > 1]
        if not prompts:
            self._ceiling.learn_decodes(duration_s)
            return
        num_tokens = sum(chunk.num_tokens for chunk in prompts)
        num_before = sum(chunk.num_tokens * (chunk.sequence.num_computed + chunk.num_tokens / 2) for chunk in prompts)
        self._ceiling.learn_prompts(num_tokens, num_before / num_tokens, duration_s)

    def advance(self, chunk: Chunk) -> None:
        """The chunk's KV is in the pool now: count it, and name the blocks it filled for the prefix cache."""
        sequence = chunk.sequence
        sequence.num_computed += chunk.num_tokens
        self._commit(sequence)

    def receive(self, sequence: Sequence) -> None:
        """The KV of all tokens of a pulling sequence has arrived and was verified."""
        self._pulling.discard(sequence)
        sequence.num_computed = sequence.num_tokens
        self._commit(sequence)

    def run(self, sequence: Sequence) -> None:
        """Decode a sequence whose KV is in its blocks, but for its newest token."""
        self._running[sequence] = None

    def fork(self, source: Sequence, sequence: Sequence) -> tuple[int, int] | None:
        """Let `sequence` share the KV of the first `source.num_computed` tokens, and run it.

        Returns the (source, destination) blocks to copy if the last block is partial and so can't be shared. Where
        there is no block for that, or as many sequences run as may, it waits to be recomputed.
        """
        if self.num_running >= self._max_num_seqs:
            self.add(sequence)
            return None
        num_full = source.num_computed // self.block_size
        has_partial = source.num_computed % self.block_size > 0
        try:
            partial = self.pool.allocate(1) if has_partial else []
        except OutOfBlocks:
            self.add(sequence)
            return None
        self.pool.retain(source.blocks[:num_full])
        sequence.blocks = [*source.blocks[:num_full], *partial]
        sequence.num_computed = source.num_computed
        sequence.num_committed = source.num_committed
        sequence.hashes = list(source.hashes)
        self.run(sequence)
        return (source.blocks[num_full], partial[0]) if partial else None

    def pause(self, sequence: Sequence) -> None:
        """Compute no more of a sequence; it keeps its blocks."""
        self._running.pop(sequence, None)
        self._pulling.discard(sequence)
        self._waiting.discard(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and release its blocks. Harmless when it has none."""
        self.pause(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        blocks, sequence.blocks = sequence.blocks, []
        self.pool.release(blocks)
        sequence.num_computed = sequence.num_committed = 0

    def _admit(self, sequence: Sequence) -> bool:
        """Reserve the blocks of all its tokens, reusing cached ones, and let it run; False when they are not there."""
        group = sequence.group
        # The last token is always computed, for its logits; what is pulled needs none.
        num_reusable = sequence.num_tokens if group.is_pull else sequence.num_tokens - 1
        if group.wants_prompt_logprobs:
            num_reusable = 0  # they need the logits of every position
        matched = self.pool.match(sequence.chain(num_reusable, self.block_size))
        num_blocks = -(-sequence.num_tokens // self.block_size)
        # A running decode may need a block any step; to admit into its last ones would only preempt somebody.
        spare = len(self._running)
        missing = num_blocks - len(matched)
        if (missing + spare > self.pool.num_available and self.num_running > 0) or missing > self.pool.num_available:
            self.pool.release(matched)
            return False
        sequence.blocks = matched + self.pool.allocate(missing)
        sequence.num_computed = len(matched) * self.block_size
        sequence.num_committed = len(matched)
        self._waiting.discard(sequence)
        if group.is_pull:
            self._pulling.add(sequence)
        else:
            self.run(sequence)
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the newest token; False when the sequence itself had to be preempted."""
        num_blocks = -(-sequence.num_tokens // self.block_size)
        while len(sequence.blocks) < num_blocks:
            try:
                sequence.blocks += self.pool.allocate(1)
            except OutOfBlocks:
                victim = max(self._preemptible(sequence), key=lambda s: s.order)
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _preemptible(self, sequence: Sequence) -> list[Sequence]:
        """Running sequences whose blocks nobody else reads. One that grows is decoding, so it is among them."""
        return [s for s in self._running if s is sequence or s.group.export is None]

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._release(sequence)
        self.num_preemptions += 1
        self.add(sequence)

    def _commit(self, sequence: Sequence) -> None:
        if sequence.num_computed // self.block_size == sequence.num_committed:
            return
        hashes = sequence.chain(sequence.num_computed, self.block_size)
        for position in range(sequence.num_committed, len(hashes)):
            self.pool.commit(sequence.blocks[position], hashes[position])
        sequence.num_committed = len(hashes)
