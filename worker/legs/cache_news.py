"""What changed in the prefix cache since masters were last told: worked out once, and the same for all of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvcache.block_pool import CacheEvent, CacheEventKind


@dataclass(frozen=True, slots=True)
class CacheNews:
    """Hashes that are there now and were not, and the other way round."""

    stored: tuple[bytes, ...]
    removed: tuple[bytes, ...]


class NewsBuilder:
    """A hash comes and goes in turn, so that a change and the one before it cancel out."""

    def __init__(self) -> None:
        self._changes: dict[bytes, CacheEventKind] = {}

    def add(self, block_hash: bytes, kind: CacheEventKind) -> None:
        if self._changes.pop(block_hash, kind) is kind:
            self._changes[block_hash] = kind

    def add_news(self, news: CacheNews) -> None:
        for block_hash in news.stored:
            self.add(block_hash, CacheEventKind.STORED)
        for block_hash in news.removed:
            self.add(block_hash, CacheEventKind.REMOVED)

    def news(self) -> CacheNews | None:
        """None when all that happened was undone."""
        if not self._changes:
            return None
        stored = tuple(key for key, kind in self._changes.items() if kind is CacheEventKind.STORED)
        removed = tuple(key for key, kind in self._changes.items() if kind is CacheEventKind.REMOVED)
        return CacheNews(stored, removed)


def cache_news(events: Iterable[CacheEvent]) -> CacheNews | None:
    """What `events`, none of them a reset, come to; None for nothing."""
    builder = NewsBuilder()
    for event in events:
        assert event.hash is not None
        builder.add(event.hash, event.kind)
    return builder.news()
