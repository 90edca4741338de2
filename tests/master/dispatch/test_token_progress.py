"""Tokens come from several workers and attempts, and count once."""

import asyncio

import pytest

from master.dispatch.output_pace import OutputPace
from master.dispatch.token_progress import TokenProgress
from master.output import OutputTiming
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import TokenDelta


def delta(position: int, *token_ids: int, finish: FinishReason | None = None, sequence: int = 0) -> TokenDelta:
    logprobs = tuple(TokenLogprobs(token_id, -1.0) for token_id in token_ids)
    return TokenDelta(sequence, position, token_ids, logprobs, finish)


async def test_what_two_workers_say_counts_once() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 5))
    progress.add(delta(0, 5))
    progress.add(delta(0, 5, 6, 7))
    progress.add(delta(1, 6))
    (news,) = await progress.take()
    assert news == delta(0, 5, 6, 7)


async def test_take_gives_only_what_is_new() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 5))
    await progress.take()
    progress.add(delta(1, 6, finish=FinishReason.STOP))
    assert await progress.take() == [delta(1, 6, finish=FinishReason.STOP)]
    assert progress.sequences[0].finish_reason is FinishReason.STOP


async def test_take_waits_for_news() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 5))
    await progress.take()
    taking = asyncio.create_task(progress.take())
    progress.add(delta(0, 5))  # nothing new
    await asyncio.sleep(0)
    assert not taking.done()
    progress.add(delta(1, 6))
    assert await taking == [delta(1, 6)]


async def test_wake_returns_without_news() -> None:
    progress = TokenProgress(1)
    progress.wake()
    assert await progress.take() == []


async def test_a_stale_end_does_not_end_what_went_on() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 1, 2, 3))
    progress.add(delta(0, 1, 2, finish=FinishReason.LENGTH))
    assert progress.sequences[0].finish_reason is None


async def test_nothing_comes_after_the_end() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 1, finish=FinishReason.STOP))
    progress.add(delta(1, 2))
    assert await progress.take() == [delta(0, 1, finish=FinishReason.STOP)]
    progress.wake()
    assert await progress.take() == []


async def test_an_end_without_tokens_is_told_once() -> None:
    progress = TokenProgress(1)
    progress.add(delta(0, 1))
    await progress.take()
    progress.finish(0, FinishReason.STOP)
    progress.wake()
    assert await progress.take() == [TokenDelta(0, 1, (), (), FinishReason.STOP)]


async def test_sequences_are_apart() -> None:
    progress = TokenProgress(2)
    progress.add(delta(0, 1, sequence=1, finish=FinishReason.STOP))
    assert [sequence.finish_reason for sequence in progress.sequences] == [None, FinishReason.STOP]
    progress.add(delta(0, 2))
    assert await progress.take() == [delta(0, 2), delta(0, 1, sequence=1, finish=FinishReason.STOP)]


def test_a_gap_is_never_papered_over() -> None:
    with pytest.raises(AssertionError):
        TokenProgress(1).add(delta(1, 5))


async def test_what_comes_after_a_stop_string_is_dropped_however_much_it_is() -> None:
    progress = TokenProgress(2)
    progress.add(TokenDelta(0, 0, (7,)))
    progress.finish(0, FinishReason.STOP)
    progress.add(TokenDelta(0, 1, (8,)))
    progress.add(TokenDelta(0, 2, (9,), finish_reason=FinishReason.LENGTH))
    assert progress.sequences[0].token_ids == [7] and progress.sequences[0].finish_reason is FinishReason.STOP


async def test_what_comes_within_a_moment_of_an_output_goes_together() -> None:
    pace = OutputPace()
    progress = TokenProgress(1, OutputTiming.GATHERED, pace)
    progress.add(TokenDelta(0, 0, (1,)))
    assert [delta.token_ids for delta in await progress.take()] == [(1,)]
    progress.add(TokenDelta(0, 1, (2,)))
    progress.add(TokenDelta(0, 2, (3,)))
    assert [delta.token_ids for delta in await progress.take()] == [(2, 3)]
    progress.add(TokenDelta(0, 3, (4,), finish_reason=FinishReason.LENGTH))
    assert [delta.token_ids for delta in await progress.take()] == [(4,)]


async def test_a_whole_answer_has_its_first_token_and_its_end() -> None:
    progress = TokenProgress(1, OutputTiming.WHOLE, OutputPace())
    progress.add(TokenDelta(0, 0, (1,)))
    assert [delta.token_ids for delta in await progress.take()] == [(1,)]
    taking = asyncio.create_task(progress.take())
    for position in range(1, 5):
        progress.add(TokenDelta(0, position, (position,)))
        await asyncio.sleep(0)
    assert not taking.done()
    progress.add(TokenDelta(0, 5, (5,), finish_reason=FinishReason.LENGTH))
    assert [delta.token_ids for delta in await taking] == [(1, 2, 3, 4, 5)]
