"""The scheduler under random work, with a pool that remembers what each slot holds."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcache.block_pool import BlockPool
from kvcache.transfer.export import Export
from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_messages import Stage, Start
from worker.engines.compute_engine import Run
from worker.engines.torch.scheduler import Chunk, Scheduler
from worker.engines.torch.sequence import Phase, Sequence, SequenceGroup

BLOCK_SIZE = 4
NUM_BLOCKS = 14
BUDGET = 10
MAX_NUM_SEQS = 4
# Few and overlapping, so that prefixes are shared.
PROMPTS = [tuple(range(length)) for length in (1, 3, 4, 9, 17)] + [(*range(8), 99, 98), (50, 51, 52, 53, 54)]


class SchedulerMachine(RuleBasedStateMachine):
    """Does what the engine and its groups do, and "computes" a token's KV as all tokens up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.groups: list[SequenceGroup] = []

    @initialize(
        enable_chunked_prefill=st.booleans(),
        enable_prefix_cache=st.booleans(),
        max_step_s=st.sampled_from([None, 1e-9, 0.004, 1.0]),
    )
    def build(self, enable_chunked_prefill: bool, enable_prefix_cache: bool, max_step_s: float | None) -> None:
        self.is_chunked = enable_chunked_prefill
        self.pool = BlockPool(NUM_BLOCKS, enable_prefix_cache)
        self.scheduler = Scheduler(
            self.pool,
            BLOCK_SIZE,
            max_tokens_per_step=BUDGET,
            max_num_seqs=MAX_NUM_SEQS,
            enable_chunked_prefill=enable_chunked_prefill,
            max_step_s=max_step_s,
        )

    @rule(
        prompt_ids=st.sampled_from(PROMPTS),
        stage=st.sampled_from(Stage),
        num_sequences=st.integers(1, 3),
        max_tokens=st.integers(1, 12),
        priority=st.integers(-1, 1),
    )
    def add(
        self, prompt_ids: tuple[int, ...], stage: Stage, num_sequences: int, max_tokens: int, priority: int
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens)
        indexes = tuple(range(num_sequences))
        number = next(self.numbers)
        start = Start(number, "r", stage, prompt_ids, sampling, sequences=indexes, priority=priority)
        group = SequenceGroup(Run.of(start, number, "model", 0.0))
        self.groups.append(group)
        self.scheduler.add(group.leader)

    @rule()
    def step(self) -> None:
        batch = self.scheduler.next_batch()
        for sequence in batch.admitted:
            if sequence.group.can_hand_off and not sequence.group.is_prefilled:
                handle = KvHandle("host:1", bytes(16), 1, 1, bytes(16), 60.0)
                sequence.group.export = Export(handle, 60.0, lambda reason: None, lambda export: None)
        sequences = [chunk.sequence for chunk in batch.chunks]
        assert len(set(sequences)) == len(sequences)
        num_tokens = [chunk.num_tokens for chunk in batch.chunks]
        assert sum(num_tokens) <= BUDGET or (not self.is_chunked and sum(n > 1 for n in num_tokens) == 1)
        self.scheduler.learn(batch.chunks, sum(num_tokens) / 1000)
        for chunk in batch.chunks:
            self.compute(chunk)

    @precondition(lambda self: any(group.is_pull and group.leader.blocks for group in self.groups))
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([a for a in self.groups if a.is_pull and a.leader.blocks]))
        leader = group.leader
        for position in range(leader.num_computed, leader.num_tokens):
            self.write(leader, position)
        group.phase = Phase.DECODING
        self.scheduler.receive(leader)
        self.fan_out(group)

    @precondition(lambda self: any(group.export and group.is_prefilled for group in self.groups))
    @rule(data=st.data(), is_taken=st.booleans())
    def end_hand_off(self, data: st.DataObject, is_taken: bool) -> None:
        group = data.draw(st.sampled_from([a for a in self.groups if a.export and a.is_prefilled]))
        group.export = None
        self.check_content(group.leader)
        if is_taken:
            self.end(group)
        else:
            group.stage = Stage.WHOLE
            self.fan_out(group, is_new=False)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), whole=st.booleans())
    def cancel(self, data: st.DataObject, whole: bool) -> None:
        group = data.draw(st.sampled_from(self.groups))
        for sequence in group.unfinished if whole else group.unfinished[:1]:
            self.finish(sequence, FinishReason.CANCELLED)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            held = {block for group in self.groups for s in group.sequences for block in s.blocks}
            assert len(held) == self.pool.num_held

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for _ in range(400):
            if not self.groups:
                break
            for group in list(self.groups):
                if (group.export is not None and group.is_prefilled) or (group.is_pull and group.leader.blocks):
                    self.end(group)
            self.step()
        assert not self.groups, "somebody never ends"
        self.pool.check()
        assert self.pool.num_free + self.pool.num_cached == NUM_BLOCKS
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)

    def compute(self, chunk: Chunk) -> None:
        sequence, is_last = chunk.sequence, chunk.is_last
        for position in range(sequence.num_computed, sequence.num_computed + chunk.num_tokens):
            self.write(sequence, position)
        self.scheduler.advance(chunk)
        self.check_content(sequence)
        if not is_last:
            return
        group = sequence.group
        if group.is_prefilled:
            self.take_token(sequence)
            return
        group.phase = Phase.DECODING
        if group.export is not None:
            self.scheduler.pause(group.leader)
            for sample in group.unfinished:
                sample.append(1000 + sample.index)
        else:
            self.fan_out(group)

    def fan_out(self, group: SequenceGroup, is_new: bool = True) -> None:
        leader = group.leader
        for sequence in group.unfinished:
            if is_new:
                sequence.append(1000 + sequence.index)
            if sequence is leader:
                self.scheduler.run(leader)
            elif (copied := self.scheduler.fork(leader, sequence)) is not None:
                for offset in range(BLOCK_SIZE):
                    if (copied[0], offset) in self.slots:
                        self.slots[copied[1], offset] = self.slots[copied[0], offset]
        if leader.finish_reason is not None:
            self.scheduler.remove(leader)
        for sequence in list(group.unfinished):
            self.check_end(sequence)

    def take_token(self, sequence: Sequence) -> None:
        sequence.append(sequence.num_tokens)
        self.check_end(sequence)

    def check_end(self, sequence: Sequence) -> None:
        if sequence.num_output >= sequence.group.run.sampling.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        group = sequence.group
        sequence.finish_reason = reason
        if group.is_prefilled and group.export is None:
            self.scheduler.remove(sequence)
        if not group.unfinished:
            self.end(group)

    def end(self, group: SequenceGroup) -> None:
        group.export = None
        for sequence in group.sequences:
            self.scheduler.remove(sequence)
        self.groups.remove(group)

    def write(self, sequence: Sequence, position: int) -> None:
        block = sequence.blocks[position // BLOCK_SIZE]
        self.slots[block, position % BLOCK_SIZE] = tuple(sequence.token_ids[: position + 1])

    def check_content(self, sequence: Sequence) -> None:
        """The KV of the computed tokens is where the block table says, whoever computed it."""
        for position in range(sequence.num_computed):
            slot = (sequence.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE)
            assert self.slots[slot] == tuple(sequence.token_ids[: position + 1])


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestScheduler = SchedulerMachine.TestCase
