"""What waits to be sent to one master: bounded however slowly it reads.

Outputs of a leg coalesce into one update, so they never exceed what the leg may emit; cache changes
coalesce per block hash to what differs from what the master knows, so they never exceed two pools.
"""

import asyncio
from collections.abc import Sequence

from protos.session_messages import CacheEvents, LegUpdate, Step, TokenDelta, ToMaster
from worker.legs.cache_news import CacheNews, NewsBuilder

MAX_HASHES = 1 << 16  # in one message: a snapshot of a large pool must not exceed what a message may have


class MasterLink:
    """The engine thread delivers, the session's task takes."""

    def __init__(self, master_id: str) -> None:
        self.master_id = master_id
        self._loop = asyncio.get_running_loop()
        self._updates: dict[int, LegUpdate] = {}
        self._news: CacheNews | None = None  # as delivered; masters that keep up share it
        self._more_news: NewsBuilder | None = None  # all since the last call of `take`, once there is more
        self._snapshot: Sequence[bytes] | None = None
        self._num_cache_events = 0
        self._has_something = asyncio.Event()

    def deliver(self, updates: Sequence[LegUpdate], news: CacheNews | None) -> None:
        self._loop.call_soon_threadsafe(self._add, updates, news)

    def deliver_cache_snapshot(self, hashes: Sequence[bytes]) -> None:
        self._loop.call_soon_threadsafe(self._replace_cache, hashes)

    async def take(self, timeout_s: float) -> list[ToMaster]:
        """What gathered since the last call, waiting for the first of it; empty after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_something.wait()
        except TimeoutError:
            return []
        self._has_something.clear()
        messages: list[ToMaster] = []
        if self._updates:
            messages.append(Step(tuple(self._updates.values())))
            self._updates = {}
        return messages + self._take_cache()

    def _take_cache(self) -> list[ToMaster]:
        messages: list[ToMaster] = []
        if self._snapshot is not None:
            hashes, self._snapshot = tuple(self._snapshot), None
            messages.append(self._numbered(hashes[:MAX_HASHES], is_snapshot=True))
            rest = range(MAX_HASHES, len(hashes), MAX_HASHES)
            messages += [self._numbered(hashes[first : first + MAX_HASHES]) for first in rest]
        news = self._news if self._more_news is None else self._more_news.news()
        self._news = self._more_news = None
        if news is not None:
            messages.append(self._numbered(news.stored, news.removed))
        return messages

    def _add(self, updates: Sequence[LegUpdate], news: CacheNews | None) -> None:
        for update in updates:
            earlier = self._updates.get(update.leg)
            self._updates[update.leg] = update if earlier is None else merge(earlier, update)
        if news is not None:
            self._add_news(news)
        self._has_something.set()

    def _add_news(self, news: CacheNews) -> None:
        if self._news is None:
            self._news = news
            return
        if self._more_news is None:
            self._more_news = NewsBuilder()
            self._more_news.add_news(self._news)
        self._more_news.add_news(news)

    def _replace_cache(self, hashes: Sequence[bytes]) -> None:
        self._snapshot = hashes
        self._news = self._more_news = None
        self._has_something.set()

    def _numbered(
        self, stored: tuple[bytes, ...], removed: tuple[bytes, ...] = (), *, is_snapshot: bool = False
    ) -> CacheEvents:
        self._num_cache_events += 1
        return CacheEvents(self._num_cache_events, stored, removed, is_snapshot)


def merge(earlier: LegUpdate, later: LegUpdate) -> LegUpdate:
    """One update that says what both say; they are of the same leg."""
    return LegUpdate(
        leg=earlier.leg,
        started=later.started or earlier.started,
        prefilled=later.prefilled or earlier.prefilled,
        transferred=later.transferred or earlier.transferred,
        deltas=_merge_deltas(earlier.deltas, later.deltas),
        failure=later.failure or earlier.failure,
        prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs,
        ended=earlier.ended or later.ended,
    )


def _merge_deltas(earlier: tuple[TokenDelta, ...], later: tuple[TokenDelta, ...]) -> tuple[TokenDelta, ...]:
    by_sequence = {delta.sequence: delta for delta in earlier}
    for delta in later:
        known = by_sequence.get(delta.sequence)
        if known is not None:
            assert known.position + len(known.token_ids) == delta.position, (known, delta)
            delta = TokenDelta(
                sequence=delta.sequence,
                position=known.position,
                token_ids=known.token_ids + delta.token_ids,
                logprobs=known.logprobs + delta.logprobs,
                finish_reason=delta.finish_reason,
            )
        by_sequence[delta.sequence] = delta
    return tuple(by_sequence.values())
