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
from tests.worker.engines.torch.engine_rig import Master
from worker.engines.torch.scheduler import Chunk, Scheduler
from worker.legs.leg import Leg, Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 14
BUDGET = 10
MAX_NUM_SEQS = 4
# Few and overlapping, so that prefixes are shared.
PROMPTS = [tuple(range(length)) for length in (1, 3, 4, 9, 17)] + [(*range(8), 99, 98), (50, 51, 52, 53, 54)]


class SchedulerMachine(RuleBasedStateMachine):
    """Does what the engine and its legs do, and "computes" a token's KV as all tokens up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.master = Master()
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.legs: list[Leg] = []

    @initialize(enable_chunked_prefill=st.booleans(), enable_prefix_cache=st.booleans())
    def build(self, enable_chunked_prefill: bool, enable_prefix_cache: bool) -> None:
        self.is_chunked = enable_chunked_prefill
        self.pool = BlockPool(NUM_BLOCKS, enable_prefix_cache)
        self.scheduler = Scheduler(
            self.pool,
            BLOCK_SIZE,
            max_tokens_per_step=BUDGET,
            max_num_seqs=MAX_NUM_SEQS,
            enable_chunked_prefill=enable_chunked_prefill,
        )

    @rule(
        prompt_ids=st.sampled_from(PROMPTS),
        stage=st.sampled_from(Stage),
        num_samples=st.integers(1, 3),
        max_tokens=st.integers(1, 12),
        priority=st.integers(-1, 1),
    )
    def add(self, prompt_ids: tuple[int, ...], stage: Stage, num_samples: int, max_tokens: int, priority: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens)
        indexes = tuple(range(num_samples))
        number = next(self.numbers)
        start = Start(number, "r", stage, prompt_ids, sampling, sequences=indexes, priority=priority)
        leg = Leg(start, self.master, number, "model", 0.0)
        self.legs.append(leg)
        self.scheduler.add(leg.leader)

    @rule()
    def step(self) -> None:
        batch = self.scheduler.next_batch()
        for sequence in batch.admitted:
            if sequence.leg.can_hand_off and not sequence.leg.is_prefilled:
                handle = KvHandle("host:1", bytes(16), 1, 1, bytes(16), 60.0)
                sequence.leg.export = Export(handle, 60.0, lambda reason: None, lambda export: None)
        sequences = [chunk.sequence for chunk in batch.chunks]
        assert len(set(sequences)) == len(sequences)
        num_tokens = [chunk.num_tokens for chunk in batch.chunks]
        assert sum(num_tokens) <= BUDGET or (not self.is_chunked and sum(n > 1 for n in num_tokens) == 1)
        for chunk in batch.chunks:
            self.compute(chunk)

    @precondition(lambda self: any(leg.is_pull and leg.leader.blocks for leg in self.legs))
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        leg = data.draw(st.sampled_from([a for a in self.legs if a.is_pull and a.leader.blocks]))
        leader = leg.leader
        for position in range(leader.num_computed, leader.num_tokens):
            self.write(leader, position)
        leg.is_prefilled = True
        self.scheduler.receive(leader)
        self.fan_out(leg)

    @precondition(lambda self: any(leg.export and leg.is_prefilled for leg in self.legs))
    @rule(data=st.data(), is_taken=st.booleans())
    def end_hand_off(self, data: st.DataObject, is_taken: bool) -> None:
        leg = data.draw(st.sampled_from([a for a in self.legs if a.export and a.is_prefilled]))
        leg.export = None
        self.check_content(leg.leader)
        if is_taken:
            self.end(leg)
        else:
            leg.stage = Stage.WHOLE
            self.fan_out(leg, is_new=False)

    @precondition(lambda self: self.legs)
    @rule(data=st.data(), whole=st.booleans())
    def cancel(self, data: st.DataObject, whole: bool) -> None:
        leg = data.draw(st.sampled_from(self.legs))
        for sequence in leg.unfinished if whole else leg.unfinished[:1]:
            self.finish(sequence, FinishReason.CANCELLED)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            held = {block for leg in self.legs for s in leg.sequences for block in s.blocks}
            assert len(held) == self.pool.num_held

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for _ in range(400):
            if not self.legs:
                break
            for leg in list(self.legs):
                if (leg.export is not None and leg.is_prefilled) or (leg.is_pull and leg.leader.blocks):
                    self.end(leg)
            self.step()
        assert not self.legs, "somebody never ends"
        self.pool.check()
        assert self.pool.num_free + self.pool.num_cached == NUM_BLOCKS
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)

    # --- what the engine does

    def compute(self, chunk: Chunk) -> None:
        sequence, is_last = chunk.sequence, chunk.is_last
        for position in range(sequence.num_computed, sequence.num_computed + chunk.num_tokens):
            self.write(sequence, position)
        self.scheduler.advance(chunk)
        self.check_content(sequence)
        if not is_last:
            return
        leg = sequence.leg
        if leg.is_prefilled:
            self.take_token(sequence)
            return
        leg.is_prefilled = True
        if leg.export is not None:
            self.scheduler.pause(leg.leader)
            for sample in leg.unfinished:
                sample.append(1000 + sample.index)
        else:
            self.fan_out(leg)

    def fan_out(self, leg: Leg, is_new: bool = True) -> None:
        leader = leg.leader
        for sequence in leg.unfinished:
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
        for sequence in list(leg.unfinished):
            self.check_end(sequence)

    def take_token(self, sequence: Sequence) -> None:
        sequence.append(sequence.num_tokens)
        self.check_end(sequence)

    def check_end(self, sequence: Sequence) -> None:
        if sequence.num_output >= sequence.leg.start.sampling.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        leg = sequence.leg
        sequence.finish_reason = reason
        if leg.is_prefilled and leg.export is None:
            self.scheduler.remove(sequence)
        if not leg.unfinished:
            self.end(leg)

    def end(self, leg: Leg) -> None:
        leg.export = None
        for sequence in leg.sequences:
            self.scheduler.remove(sequence)
        self.legs.remove(leg)

    # --- what the pool holds

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
