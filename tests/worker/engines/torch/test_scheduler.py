import itertools
from collections.abc import Callable
from collections.abc import Sequence as Items

import pytest

from kvcache.block_pool import BlockPool
from kvcache.transfer.export import Export
from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import SamplingParams
from protos.session_messages import Stage, Start
from worker.engines.compute_engine import Run
from worker.engines.torch.scheduler import Scheduler, StepBatch
from worker.engines.torch.sequence import Phase, Sequence, SequenceGroup
from worker.engines.torch.waiting_line import LOOK_AHEAD, MAX_OVERTAKEN

BLOCK_SIZE = 4

numbers = itertools.count(1)


def make(
    num_blocks: int = 100,
    *,
    budget: int = 16,
    max_num_seqs: int = 8,
    enable_chunked_prefill: bool = True,
    enable_prefix_cache: bool = True,
    max_step_s: float | None = None,
) -> Scheduler:
    pool = BlockPool(num_blocks, enable_prefix_cache)
    return Scheduler(
        pool,
        BLOCK_SIZE,
        max_tokens_per_step=budget,
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=enable_chunked_prefill,
        max_step_s=max_step_s,
    )


def group_of(
    prompt_ids: Items[int],
    stage: Stage = Stage.WHOLE,
    *,
    sequences: tuple[int, ...] = (0,),
    priority: int = 0,
    prompt_logprobs: int | None = None,
) -> SequenceGroup:
    number = next(numbers)
    start = Start(
        leg=number,
        request_id="r",
        stage=stage,
        prompt_ids=tuple(prompt_ids),
        sampling=SamplingParams(prompt_logprobs=prompt_logprobs),
        sequences=sequences,
        priority=priority,
        kv_handle=b"handle" if stage is Stage.DECODE else None,
    )
    return SequenceGroup(Run.of(start, number, "model", 0.0))


def fresh_prompt(length: int) -> range:
    """Shares no block with any other."""
    first = next(numbers) * 1000
    return range(first, first + length)


def with_export(of: SequenceGroup) -> SequenceGroup:
    handle = KvHandle("host:1", bytes(16), 1, 1, bytes(16), 60.0)
    of.export = Export(handle, 60.0, lambda reason: None, lambda export: None)
    return of


def added(scheduler: Scheduler, prompt_ids: Items[int], stage: Stage = Stage.WHOLE, priority: int = 0) -> Sequence:
    sequence = group_of(prompt_ids, stage, priority=priority).leader
    scheduler.add(sequence)
    return sequence


def finish_step(scheduler: Scheduler, batch: StepBatch) -> None:
    """What the engine does after computing a token in a millisecond, with 0 as every next token."""
    scheduler.learn(batch.chunks, sum(chunk.num_tokens for chunk in batch.chunks) / 1000)
    for chunk in batch.chunks:
        is_last = chunk.is_last
        scheduler.advance(chunk)
        if is_last:
            chunk.sequence.group.phase = Phase.DECODING
            chunk.sequence.append(0)


def step(scheduler: Scheduler) -> dict[Sequence, int]:
    """Tokens computed of each sequence."""
    batch = scheduler.next_batch()
    finish_step(scheduler, batch)
    assert len({chunk.sequence for chunk in batch.chunks}) == len(batch.chunks)
    return {chunk.sequence: chunk.num_tokens for chunk in batch.chunks}


def decoding(scheduler: Scheduler, length: int = 4, priority: int = 0) -> Sequence:
    sequence = added(scheduler, fresh_prompt(length), priority=priority)
    step_until(scheduler, lambda: sequence.group.is_prefilled)
    return sequence


def step_until(scheduler: Scheduler, condition: Callable[[], bool]) -> dict[Sequence, int]:
    """What the last step computed."""
    for _ in range(50):
        computed = step(scheduler)
        if condition():
            return computed
    raise AssertionError("not within 50 steps")


def step_until_preempted(scheduler: Scheduler) -> dict[Sequence, int]:
    assert scheduler.num_preemptions == 0
    return step_until(scheduler, lambda: scheduler.num_preemptions > 0)


def test_decodes_come_before_prompts_and_prompts_share_what_is_left() -> None:
    scheduler = make(budget=16)
    one, two = decoding(scheduler), decoding(scheduler)
    long, short = added(scheduler, fresh_prompt(20)), added(scheduler, fresh_prompt(5))
    assert step(scheduler) == {one: 1, two: 1, long: 9, short: 5}
    assert step(scheduler) == {one: 1, two: 1, long: 11, short: 1}
    assert step(scheduler) == {one: 1, two: 1, long: 1, short: 1}


def test_a_long_prompt_leaves_half_of_the_step_to_those_behind() -> None:
    """R11"""
    scheduler = make(budget=16)
    long, longer, short, shorter = (added(scheduler, fresh_prompt(length)) for length in (40, 50, 5, 2))
    assert step(scheduler) == {long: 8, longer: 4, short: 2, shorter: 2}
    assert step(scheduler) == {long: 8, longer: 4, short: 3, shorter: 1}
    assert step(scheduler) == {long: 7, longer: 7, short: 1, shorter: 1}


def test_what_those_behind_do_not_need_goes_to_the_long_prompt() -> None:
    scheduler = make(budget=16)
    long, short = added(scheduler, fresh_prompt(40)), added(scheduler, fresh_prompt(3))
    assert step(scheduler) == {long: 13, short: 3}
    scheduler.remove(short)
    assert step(scheduler) == {long: 16}


def test_prompts_beside_streams_take_no_longer_than_a_step_may() -> None:
    """R11"""
    scheduler = make(budget=512, num_blocks=1000, max_step_s=0.1)
    long = added(scheduler, fresh_prompt(1000))
    assert step(scheduler) == {long: 512}  # nobody streams, so nobody waits
    scheduler.remove(long)
    stream = decoding(scheduler)
    step(scheduler)
    long, short = added(scheduler, fresh_prompt(900)), added(scheduler, fresh_prompt(30))
    computed = step(scheduler)
    assert computed == {stream: 1, long: 69, short: 30}
    assert step(scheduler) == {stream: 1, short: 1, long: 99}


def test_prompts_are_computed_even_where_streams_take_longer_than_a_step_may() -> None:
    scheduler = make(budget=512, num_blocks=1000, max_step_s=0.0001)
    stream = decoding(scheduler)
    step(scheduler)
    long, short = added(scheduler, fresh_prompt(900)), added(scheduler, fresh_prompt(12))
    assert step(scheduler) == {stream: 1, long: 8, short: 8}
    assert step(scheduler) == {stream: 1, long: 12, short: 4}


def test_a_prompt_that_ends_in_this_step_is_not_cut() -> None:
    scheduler = make(budget=16)
    one, other = added(scheduler, fresh_prompt(16)), added(scheduler, fresh_prompt(16))
    assert step(scheduler) == {one: 16}
    assert step(scheduler) == {one: 1, other: 15}


def test_a_waiting_prompt_goes_before_a_running_one_of_less_importance() -> None:
    """R11"""
    scheduler = make(budget=16)
    long = added(scheduler, fresh_prompt(100))
    step(scheduler)
    urgent = added(scheduler, fresh_prompt(14), priority=-1)
    assert step(scheduler) == {urgent: 14, long: 2}


def test_a_pull_needs_no_budget() -> None:
    """R11"""
    scheduler = make(budget=8)
    added(scheduler, fresh_prompt(8))
    behind, pulling = added(scheduler, fresh_prompt(100)), added(scheduler, fresh_prompt(9), Stage.DECODE)
    batch = scheduler.next_batch()
    assert pulling in batch.admitted and behind not in batch.admitted


def test_no_step_exceeds_the_budget() -> None:
    scheduler = make(budget=6)
    sequences = [added(scheduler, fresh_prompt(length)) for length in (9, 2, 14, 3, 3)]
    step_sizes: list[int] = []

    def is_done() -> bool:
        return all(sequence.group.is_prefilled for sequence in sequences)

    while not is_done() and len(step_sizes) < 50:
        step_sizes.append(sum(step(scheduler).values()))
    assert is_done() and 0 < min(step_sizes) <= max(step_sizes) == 6


def test_more_decodes_than_the_budget_take_the_earlier_ones() -> None:
    scheduler = make(budget=2)
    sequences = [decoding(scheduler, length=2) for _ in range(2)]
    third = added(scheduler, fresh_prompt(2))
    assert list(step(scheduler)) == sequences
    scheduler.remove(sequences[0])
    assert list(step(scheduler)) == [sequences[1], third]


def test_waiting_sequences_go_by_priority_then_arrival() -> None:
    scheduler = make(max_num_seqs=1)
    running = decoding(scheduler)
    late, later, urgent = (added(scheduler, fresh_prompt(4), priority=p) for p in (0, 0, -1))
    order = []
    for sequence in (running, urgent, late, later):
        scheduler.remove(sequence)
        order.append([next(iter(step(scheduler)), None)])
    assert order == [[urgent], [late], [later], [None]]


def test_a_prompt_is_uncut_without_chunked_prefill() -> None:
    scheduler = make(budget=8, enable_chunked_prefill=False)
    one = decoding(scheduler)
    short, over, last = (added(scheduler, fresh_prompt(length)) for length in (5, 20, 4))
    assert step(scheduler) == {one: 1, short: 5}
    assert step(scheduler) == {one: 1, short: 1, over: 20}
    assert step(scheduler)[last] == 4


def test_decodes_that_never_end_do_not_keep_an_uncut_prompt_waiting() -> None:
    scheduler = make(budget=8, enable_chunked_prefill=False)
    one = decoding(scheduler)
    over = added(scheduler, fresh_prompt(8))
    assert step(scheduler) == {one: 1, over: 8}


def test_admission_takes_the_blocks_of_the_whole_prompt() -> None:
    scheduler = make(num_blocks=10, budget=4)
    first = added(scheduler, fresh_prompt(17))
    step(scheduler)
    assert (len(first.blocks), scheduler.pool.num_held) == (5, 5)
    second = added(scheduler, fresh_prompt(21))
    for _ in range(6):
        assert second not in step(scheduler)
    scheduler.remove(first)
    assert second in step(scheduler)
    assert len(second.blocks) == 6


def test_those_behind_go_before_one_that_does_not_fit() -> None:
    """R12"""
    scheduler = make(num_blocks=100, budget=1000, max_num_seqs=40)
    holder, large = added(scheduler, fresh_prompt(79)), added(scheduler, fresh_prompt(85 * BLOCK_SIZE))
    small = [added(scheduler, fresh_prompt(3)) for _ in range(20)]
    assert list(step(scheduler)) == [holder, *small]
    for sequence in (holder, *small):
        scheduler.remove(sequence)
    assert list(step(scheduler)) == [large]


def test_nobody_is_overtaken_for_ever() -> None:
    """R12: small ones keep coming, each as another leaves, and never do so many leave at once that it fits."""
    scheduler = make(num_blocks=20, budget=1000, max_num_seqs=40)
    running = [added(scheduler, fresh_prompt(BLOCK_SIZE)) for _ in range(10)]
    step(scheduler)
    large = added(scheduler, fresh_prompt(12 * BLOCK_SIZE))
    for _ in range(3 * MAX_OVERTAKEN):
        scheduler.remove(running.pop(0))
        running.append(added(scheduler, fresh_prompt(BLOCK_SIZE)))
        if large in step(scheduler):
            break
    assert large.blocks and large.num_overtaken == MAX_OVERTAKEN


def test_a_preempted_stream_is_not_overtaken() -> None:
    """R12"""
    scheduler = make(num_blocks=6, enable_prefix_cache=False)
    first, second = decoding(scheduler, length=8), decoding(scheduler, length=7)
    step_until_preempted(scheduler)
    late = added(scheduler, fresh_prompt(2))
    assert set(step(scheduler)) == {first} and scheduler.num_waiting == 2
    scheduler.remove(first)
    assert list(step(scheduler)) == [second, late]


def test_the_search_for_one_that_fits_is_bounded() -> None:
    scheduler = make(num_blocks=10, budget=1000, max_num_seqs=40)
    added(scheduler, fresh_prompt(17))
    for _ in range(LOOK_AHEAD):
        added(scheduler, fresh_prompt(40))
    small = added(scheduler, fresh_prompt(2))
    assert small not in step(scheduler)


def test_admission_leaves_a_block_for_every_running_decode() -> None:
    scheduler = make(num_blocks=4)
    running = decoding(scheduler, length=5)
    waiting = added(scheduler, fresh_prompt(8))
    assert list(step(scheduler)) == [running] and scheduler.pool.num_available == 2
    scheduler.remove(running)
    assert list(step(scheduler)) == [waiting]


@pytest.mark.parametrize(("length", "num_reused"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_the_last_token_is_computed_whatever_is_cached(length: int, num_reused: int) -> None:
    scheduler = make()
    ids = fresh_prompt(length)
    scheduler.remove(first := added(scheduler, ids))
    scheduler.add(first)
    step(scheduler)
    scheduler.remove(first)
    again = added(scheduler, ids)
    assert step(scheduler) == {again: length - num_reused}


def test_a_running_sequence_shares_its_blocks_with_an_equal_prompt() -> None:
    scheduler = make()
    ids = fresh_prompt(10)
    first = added(scheduler, ids)
    step(scheduler)
    second = added(scheduler, ids)
    step(scheduler)
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2] != first.blocks[2]


def test_nothing_is_reused_for_prompt_logprobs() -> None:
    scheduler = make()
    ids = fresh_prompt(10)
    added(scheduler, ids)
    step(scheduler)
    wanting = group_of(ids, prompt_logprobs=0).leader
    scheduler.add(wanting)
    assert step(scheduler)[wanting] == 10


def test_what_is_pulled_may_be_cached_to_its_last_token() -> None:
    scheduler = make()
    ids = fresh_prompt(8)
    added(scheduler, ids)
    step(scheduler)
    pulling = added(scheduler, ids, Stage.DECODE)
    batch = scheduler.next_batch()
    assert batch.admitted == (pulling,) and all(chunk.sequence is not pulling for chunk in batch.chunks)
    assert pulling.num_computed == 8


def test_what_was_pulled_decodes_and_is_cached() -> None:
    scheduler = make()
    pulling = added(scheduler, fresh_prompt(10), Stage.DECODE)
    assert step(scheduler) == {}
    assert scheduler.num_running == 1
    pulling.group.phase = Phase.DECODING
    scheduler.receive(pulling)
    assert pulling.num_uncomputed == 0 and len(scheduler.pool.snapshot()) == 2
    pulling.append(0)
    scheduler.run(pulling)
    assert step(scheduler) == {pulling: 1}


def test_the_latest_decode_gives_way_and_comes_back() -> None:
    scheduler = make(num_blocks=6, enable_prefix_cache=False)
    first, second = decoding(scheduler, length=8), decoding(scheduler, length=7)
    computed = step_until_preempted(scheduler)
    assert set(computed) == {first}
    assert (second.blocks, second.num_computed, scheduler.num_waiting) == ([], 0, 1)
    scheduler.remove(first)
    assert step(scheduler) == {second: second.num_tokens - 1}
    scheduler.pool.check()


def test_the_worse_priority_gives_way_though_it_came_first() -> None:
    scheduler = make(num_blocks=6, enable_prefix_cache=False)
    unimportant, important = decoding(scheduler, length=8, priority=1), decoding(scheduler, length=7, priority=0)
    step_until_preempted(scheduler)
    assert unimportant.blocks == [] and important.blocks != []


def test_a_sequence_that_grows_gives_way_itself_when_it_is_the_latest() -> None:
    scheduler = make(num_blocks=6, enable_prefix_cache=False)
    first, second = decoding(scheduler, length=7), decoding(scheduler, length=8)
    computed = step_until_preempted(scheduler)
    assert set(computed) == {first} and second.blocks == []


def test_sequences_of_one_leg_give_way_in_order() -> None:
    """One that was chosen for this step already must not lose its blocks to a later one."""
    scheduler = make(num_blocks=4, budget=16, enable_prefix_cache=False)
    group = group_of(fresh_prompt(4), sequences=(0, 1, 2))
    leader = group.leader
    scheduler.add(leader)
    batch = scheduler.next_batch()
    scheduler.advance(batch.chunks[0])
    group.phase = Phase.DECODING
    for sequence in group.sequences:
        sequence.append(sequence.index)
    for sequence in group.sequences[1:]:
        assert scheduler.fork(leader, sequence) is None
    for _ in range(4):
        computed = step(scheduler)
        assert all(num_tokens <= 4 + sequence.num_output for sequence, num_tokens in computed.items())
        assert all(sequence.blocks for sequence in computed)
    scheduler.pool.check()


def test_a_sequence_with_an_export_never_gives_way() -> None:
    scheduler = make(num_blocks=6, budget=3, enable_prefix_cache=False)
    older = decoding(scheduler, length=3)
    exported = with_export(group_of(fresh_prompt(16))).leader
    scheduler.add(exported)
    # the later of the two, in the middle of its prompt while the older one needs a block
    step_until_preempted(scheduler)
    assert 0 < exported.num_computed < 16
    assert exported.blocks and older.blocks == [] and scheduler.num_preemptions == 1


def test_no_more_sequences_run_than_allowed() -> None:
    scheduler = make(max_num_seqs=2, budget=100)
    sequences = [added(scheduler, fresh_prompt(4)) for _ in range(5)]
    assert list(step(scheduler)) == sequences[:2]
    scheduler.remove(sequences[0])
    assert list(step(scheduler)) == sequences[1:3]


def test_more_sequences_than_may_run_take_turns() -> None:
    """R12: such a group needs one place to begin, and forks as places become free."""
    scheduler = make(max_num_seqs=2, budget=100)
    older = decoding(scheduler)
    group = group_of(fresh_prompt(10), sequences=tuple(range(4)))
    scheduler.add(group.leader)
    assert step(scheduler) == {older: 1, group.leader: 10}
    for sequence in group.sequences[1:]:
        sequence.append(0)
        assert scheduler.fork(group.leader, sequence) is None
    younger = added(scheduler, fresh_prompt(4))
    assert list(step(scheduler)) == [older, group.leader]
    scheduler.remove(older)
    assert step(scheduler) == {group.leader: 1, group.sequences[1]: 3}  # two blocks were cached
    for sequence in group.sequences[:3]:
        scheduler.remove(sequence)
    assert list(step(scheduler)) == [group.sequences[3], younger]


def test_a_fork_shares_full_blocks_and_copies_the_partial_one() -> None:
    scheduler = make()
    group = group_of(fresh_prompt(10), sequences=(0, 1))
    source, other = group.sequences
    scheduler.add(source)
    step(scheduler)
    copied = scheduler.fork(source, other)
    assert other.blocks[:2] == source.blocks[:2]
    assert copied == (source.blocks[2], other.blocks[2]) and copied[0] != copied[1]
    assert (other.num_computed, other.num_committed) == (10, 2)
    scheduler.remove(source)
    assert scheduler.pool.num_held == 3
    scheduler.remove(other)
    assert scheduler.pool.num_held == 0


def test_a_fork_of_full_blocks_copies_nothing() -> None:
    scheduler = make()
    group = group_of(fresh_prompt(8), sequences=(0, 1))
    scheduler.add(group.leader)
    step(scheduler)
    assert scheduler.fork(group.leader, group.sequences[1]) is None
    assert group.sequences[1].blocks == group.leader.blocks[:2]
    assert scheduler.num_running == 2


def test_a_fork_in_a_full_pool_is_computed_later() -> None:
    scheduler = make(num_blocks=3)
    group = group_of(fresh_prompt(10), sequences=(0, 1))
    source, other = group.sequences
    scheduler.add(source)
    step(scheduler)
    other.append(5)
    assert scheduler.fork(source, other) is None
    assert (other.blocks, scheduler.num_waiting) == ([], 1)
    scheduler.remove(source)
    assert step(scheduler)[other] == 3  # two blocks were cached


def test_queued_tokens_are_those_to_be_prefilled() -> None:
    scheduler = make(budget=4)
    decoding(scheduler)
    added(scheduler, fresh_prompt(10))
    added(scheduler, fresh_prompt(20), Stage.DECODE)
    assert scheduler.num_queued_tokens == 10
    step(scheduler)
    assert scheduler.num_queued_tokens == 7


def test_removing_is_harmless_wherever_a_sequence_is() -> None:
    scheduler = make(max_num_seqs=2)
    running, pulling = added(scheduler, fresh_prompt(6)), added(scheduler, fresh_prompt(6), Stage.DECODE)
    step(scheduler)
    waiting, stranger = added(scheduler, fresh_prompt(6)), group_of(fresh_prompt(6)).leader
    for _ in range(2):
        for sequence in (running, pulling, waiting, stranger):
            scheduler.remove(sequence)
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.pool.num_held) == (0, 0, 0)
    assert step(scheduler) == {}
