"""What waits for a master, whose task takes it on the event loop while the engine thread delivers."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.block_pool import CacheEvent, CacheEventKind
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import (
    CacheEvents,
    ErrorCode,
    Failure,
    LegUpdate,
    Prefilled,
    Started,
    Step,
    TokenDelta,
    ToMaster,
)
from worker.legs.cache_news import CacheNews, cache_news
from worker.master_link import MAX_HASHES, MasterLink, merge


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def news(*numbers: int) -> CacheNews | None:
    """Positive ones are stored, in turn, and negative ones removed."""
    kinds = {True: CacheEventKind.STORED, False: CacheEventKind.REMOVED}
    return cache_news([CacheEvent(kinds[number > 0], key(abs(number))) for number in numbers])


def token(leg: int, position: int, finish_reason: FinishReason | None = None, sequence: int = 0) -> LegUpdate:
    delta = TokenDelta(sequence, position, (100 + position,), (TokenLogprobs(100 + position),), finish_reason)
    return LegUpdate(leg, deltas=(delta,))


async def take(link: MasterLink) -> list[ToMaster]:
    return await link.take(5.0)


async def take_updates(link: MasterLink) -> Sequence[LegUpdate]:
    (step,) = await take(link)
    assert isinstance(step, Step)
    return step.updates


async def take_cache(link: MasterLink) -> CacheEvents:
    (events,) = await take(link)
    assert isinstance(events, CacheEvents)
    return events


async def test_nothing_is_nothing() -> None:
    assert await MasterLink("m").take(0.01) == []
    assert await MasterLink("m").take(-1.0) == []


async def test_what_another_thread_delivers_wakes_the_taker() -> None:
    link = MasterLink("m")
    taking = asyncio.create_task(take(link))
    thread = threading.Thread(target=link.deliver, args=([token(1, 0)], None))
    thread.start()
    assert await taking == [Step((token(1, 0),))]
    thread.join()


async def test_updates_keep_the_order_of_legs_and_positions() -> None:
    link = MasterLink("m")
    for position in range(3):
        link.deliver([token(1, position), token(2, position)], None)
    first, second = await take_updates(link)
    assert (first.leg, second.leg) == (1, 2)
    assert first.deltas == (
        TokenDelta(0, 0, (100, 101, 102), (TokenLogprobs(100), TokenLogprobs(101), TokenLogprobs(102))),
    )
    link.deliver([token(1, 3)], None)
    assert await take_updates(link) == (token(1, 3),)


async def test_what_gathers_for_a_slow_master_is_one_update_for_each_leg() -> None:
    link = MasterLink("m")
    for position in range(1000):
        link.deliver([token(leg, position, sequence=sample) for leg in range(3) for sample in range(2)], None)
    updates = await take_updates(link)
    assert len(updates) == 3
    for update in updates:
        assert [(delta.position, len(delta.token_ids)) for delta in update.deltas] == [(0, 1000)] * 2
    assert await link.take(0.01) == []


async def test_everything_told_of_an_leg_is_kept() -> None:
    link = MasterLink("m")
    started, prefilled = Started(3, 0.5), Prefilled(4, 0.25)
    failure = Failure(ErrorCode.INTERNAL, "broke")
    entries = tuple(TokenLogprobs(number) for number in range(4))
    link.deliver([LegUpdate(1, started=started, prompt_logprobs=entries[:1])], None)
    link.deliver([LegUpdate(1, prompt_logprobs=entries[1:]), LegUpdate(1, prefilled=prefilled)], None)
    link.deliver([token(1, 0), token(1, 1, FinishReason.STOP), token(1, 0, sequence=1)], None)
    link.deliver([LegUpdate(1, failure=failure), LegUpdate(1, ended=True)], None)
    (update,) = await take_updates(link)
    assert (update.started, update.prefilled, update.failure, update.ended) == (started, prefilled, failure, True)
    assert update.prompt_logprobs == entries
    assert [(delta.sequence, delta.finish_reason) for delta in update.deltas] == [(0, FinishReason.STOP), (1, None)]


async def test_a_change_that_was_undone_is_not_told() -> None:
    link = MasterLink("m")
    link.deliver([], news(1, 2, -1))
    events = await take_cache(link)
    assert (events.stored, events.removed, events.number) == ((key(2),), (), 1)
    link.deliver([], news(-2, 3))
    link.deliver([], news(2, 4))
    events = await take_cache(link)
    assert (events.stored, events.removed, events.number) == ((key(3), key(4)), (), 2)


async def test_cache_changes_of_a_slow_master_stay_bounded_by_the_pool() -> None:
    """Every block of a small pool is stored and evicted again and again, under new hashes."""
    link = MasterLink("m")
    link.deliver([], news(*range(1, 11)))
    await take_cache(link)
    for number in range(11, 1001):
        link.deliver([], news(10 - number, number))
    events = await take_cache(link)
    assert set(events.stored) == {key(number) for number in range(991, 1001)}
    assert set(events.removed) == {key(number) for number in range(1, 11)}


async def test_a_snapshot_replaces_what_was_to_be_told() -> None:
    link = MasterLink("m")
    link.deliver([token(1, 0)], news(1))
    link.deliver_cache_snapshot([key(7)])
    link.deliver([], news(-7, 8))
    step, snapshot, changes = await take(link)
    assert step == Step((token(1, 0),))
    assert snapshot == CacheEvents(1, (key(7),), (), is_snapshot=True)
    assert changes == CacheEvents(2, (key(8),), (key(7),))


async def test_a_long_snapshot_comes_in_parts() -> None:
    link = MasterLink("m")
    hashes = [key(number) for number in range(1, 2 * MAX_HASHES + 2)]
    link.deliver_cache_snapshot(hashes)
    link.deliver([], news(-1))
    first, second, third, changes = await take(link)
    assert first == CacheEvents(1, tuple(hashes[:MAX_HASHES]), is_snapshot=True)
    assert second == CacheEvents(2, tuple(hashes[MAX_HASHES : 2 * MAX_HASHES]))
    assert third == CacheEvents(3, tuple(hashes[2 * MAX_HASHES :]))
    assert changes == CacheEvents(4, (), (key(1),))


async def test_masters_that_keep_up_share_what_they_are_told() -> None:
    one, other, told = MasterLink("1"), MasterLink("2"), news(1, 2)
    assert told is not None
    for link in (one, other):
        link.deliver([], told)
        events = await take_cache(link)
        assert events.stored is told.stored


async def test_an_empty_snapshot_is_told() -> None:
    link = MasterLink("m")
    link.deliver_cache_snapshot([])
    assert await take(link) == [CacheEvents(1, is_snapshot=True)]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60))
async def test_a_master_knows_the_cache_whenever_it_takes(moves: list[tuple[int, bool]]) -> None:
    """Each move stores or removes one of four hashes; after some of them the master takes."""
    link, cache, known = MasterLink("m"), set[bytes](), set[bytes]()
    for number, takes in moves:
        is_there = key(number) in cache
        cache ^= {key(number)}
        link.deliver([], news(-number if is_there else number))
        if takes:
            for message in await take(link):
                assert isinstance(message, CacheEvents)
                assert known.isdisjoint(message.stored) and known.issuperset(message.removed)
                known = (known | set(message.stored)) - set(message.removed)
            assert known == cache


def test_updates_with_a_gap_are_our_bug() -> None:
    with pytest.raises(AssertionError):
        merge(token(1, 0), token(1, 2))
