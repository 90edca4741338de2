"""What waits to be sent to one master: bounded however slowly it reads.

Outputs of a leg coalesce into one update, so they never exceed what the leg may emit; cache changes
coalesce per block hash to what differs from what the master knows, so they never exceed two pools.
"""

import asyncio
from collections.abc import Sequence

from kvcache.block_pool import CacheEvent, CacheEventKind
from protos.session_messages import CacheEvents, LegUpdate, Step, TokenDelta, ToMaster


class MasterLink:
    """The engine thread delivers, the session's task takes."""

    def __init__(self, master_id: str) -> None:
        self.master_id = master_id
        self._loop = asyncio.get_running_loop()
        self._updates: dict[int, LegUpdate] = {}
        self._cache_changes: dict[bytes, CacheEventKind] = {}
        self._snapshot: Sequence[bytes] | None = None
        self._num_cache_events = 0
        self._has_something = asyncio.Event()

    def deliver(self, updates: Sequence[LegUpdate], cache_events: Sequence[CacheEvent]) -> None:
        self._loop.call_soon_threadsafe(self._add, updates, cache_events)

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
        if self._snapshot is not None:
            messages.append(self._cache_message(stored=self._snapshot, is_snapshot=True))
            self._snapshot = None
        if self._cache_changes:
            stored = [key for key, kind in self._cache_changes.items() if kind is CacheEventKind.STORED]
            removed = [key for key, kind in self._cache_changes.items() if kind is CacheEventKind.REMOVED]
            messages.append(self._cache_message(stored=stored, removed=removed))
            self._cache_changes = {}
        return messages

    def _add(self, updates: Sequence[LegUpdate], cache_events: Sequence[CacheEvent]) -> None:
        for update in updates:
            earlier = self._updates.get(update.leg)
            self._updates[update.leg] = update if earlier is None else merge(earlier, update)
        for event in cache_events:
            assert event.hash is not None
            # A hash comes and goes in turn: a change that waits here and this one cancel out.
            if self._cache_changes.pop(event.hash, event.kind) is event.kind:
                self._cache_changes[event.hash] = event.kind
        self._has_something.set()

    def _replace_cache(self, hashes: Sequence[bytes]) -> None:
        self._snapshot = hashes
        self._cache_changes = {}
        self._has_something.set()

    def _cache_message(
        self, stored: Sequence[bytes], removed: Sequence[bytes] = (), is_snapshot: bool = False
    ) -> CacheEvents:
        self._num_cache_events += 1
        return CacheEvents(self._num_cache_events, tuple(stored), tuple(removed), is_snapshot)


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
