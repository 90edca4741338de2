"""etcd's Watch service over the built-in store.

A watch is a cursor into the store's bounded history, not a queue: a reader that is slow costs no memory, and one that
is too slow finds its place compacted and is told so, as by etcd itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from registry.embedded.kv_service import key_value_message
from registry.embedded.store import EtcdStore, StoreEvent, in_range
from registry.embedded.store_errors import RevisionCompacted
from registry.etcd import wire

EVENTS_PER_RESPONSE = 1000
MAX_WATCHES_PER_STREAM = 10_000
PROGRESS_INTERVAL_S = 600.0  # etcd's own
NO_WATCH_ID = -1  # etcd's mark on answers that concern the whole stream


@dataclass
class _Watch:
    id: int
    key: bytes
    range_end: bytes
    next_revision: int
    wants_puts: bool
    wants_deletes: bool
    wants_before: bool
    wants_progress: bool

    def wants(self, event: StoreEvent) -> bool:
        wants_kind = self.wants_deletes if event.now is None else self.wants_puts
        return wants_kind and in_range(event.key, self.key, self.range_end)


class WatchService:
    """`header` makes the response header for the store's revision at that moment."""

    def __init__(self, store: EtcdStore, header: Callable[[], Any]) -> None:
        self._store = store
        self._header = header

    async def Watch(self, requests: Any, context: Any) -> None:
        stream = _Stream(self._store, self._header, context)
        self._store.add_listener(stream.wake)
        writing = asyncio.create_task(stream.write_for_ever())
        reading = asyncio.create_task(stream.take_requests(requests))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._store.remove_listener(stream.wake)
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)


class _Stream:
    """All watches of one client stream; one task reads requests, one writes every response."""

    def __init__(self, store: EtcdStore, header: Callable[[], Any], context: Any) -> None:
        self._store = store
        self._header = header
        self._context = context
        self._watches: dict[int, _Watch] = {}
        self._next_id = 0
        self._answers: deque[Any] = deque()
        self._owes_progress = False
        self._awake = asyncio.Event()
        self._drained = asyncio.Event()

    def wake(self) -> None:
        self._awake.set()

    async def take_requests(self, requests: Any) -> None:
        """Ends when the client has ended its side."""
        async for request in requests:
            self._take(request)
            self._drained.clear()
            self._awake.set()
            # One request at a time, so that a client that asks and never reads cannot pile up answers here.
            await self._drained.wait()

    async def write_for_ever(self) -> None:
        while True:
            self._awake.clear()
            while self._answers:
                await self._context.write(self._answers.popleft())
            self._drained.set()
            for watch in list(self._watches.values()):
                await self._write_events(watch)
            if self._owes_progress and self._is_caught_up():
                self._owes_progress = False
                await self._context.write(self._progress(NO_WATCH_ID))
            if self._answers or self._awake.is_set():
                continue
            try:
                async with asyncio.timeout(PROGRESS_INTERVAL_S):
                    await self._awake.wait()
            except TimeoutError:
                self._answers.extend(self._progress(w.id) for w in self._watches.values() if w.wants_progress)

    def _take(self, request: Any) -> None:
        match request.WhichOneof("request_union"):
            case "create_request":
                self._create(request.create_request)
            case "cancel_request":
                if self._watches.pop(request.cancel_request.watch_id, None) is not None:
                    self._answers.append(self._canceled(request.cancel_request.watch_id))
            case _ if wire.is_progress_request(request):
                self._owes_progress = True
            case _:
                pass  # a request of a later etcd, which etcd would pass over as well

    def _create(self, create: Any) -> None:
        if len(self._watches) >= MAX_WATCHES_PER_STREAM or not create.key:
            reason = "too many watches on one stream" if create.key else "etcdserver: key is not provided"
            self._answers.append(self._canceled(NO_WATCH_ID, created=True, cancel_reason=reason))
            return
        watch = _Watch(
            id=self._next_id,
            key=create.key,
            range_end=create.range_end,
            next_revision=create.start_revision or self._store.revision + 1,
            wants_puts=wire.WatchCreateRequest.NOPUT not in create.filters,
            wants_deletes=wire.WatchCreateRequest.NODELETE not in create.filters,
            wants_before=create.prev_kv,
            wants_progress=create.progress_notify,
        )
        self._next_id += 1
        self._watches[watch.id] = watch
        self._answers.append(wire.WatchResponse(header=self._header(), watch_id=watch.id, created=True))

    async def _write_events(self, watch: _Watch) -> None:
        """Writes all there is for this watch; events that come meanwhile are left for the next round."""
        last_revision = self._store.revision
        while watch.id in self._watches and watch.next_revision <= last_revision:
            try:
                events = self._store.events_from(watch.next_revision, EVENTS_PER_RESPONSE)
            except RevisionCompacted:
                del self._watches[watch.id]
                compacted = self._canceled(watch.id, compact_revision=self._store.compacted_revision)
                await self._context.write(compacted)
                return
            watch.next_revision = events[-1].revision + 1 if events else self._store.revision + 1
            wanted = [event for event in events if watch.wants(event)]
            if wanted:
                await self._context.write(self._events(watch, wanted))

    def _is_caught_up(self) -> bool:
        return all(watch.next_revision > self._store.revision for watch in self._watches.values())

    def _events(self, watch: _Watch, events: Iterable[StoreEvent]) -> Any:
        messages = [_event_message(event, watch.wants_before) for event in events]
        return wire.WatchResponse(header=self._header(), watch_id=watch.id, events=messages)

    def _progress(self, watch_id: int) -> Any:
        return wire.WatchResponse(header=self._header(), watch_id=watch_id)

    def _canceled(self, watch_id: int, **fields: Any) -> Any:
        return wire.WatchResponse(header=self._header(), watch_id=watch_id, canceled=True, **fields)


def _event_message(event: StoreEvent, wants_before: bool) -> Any:
    if event.now is not None:
        message = wire.Event(type=wire.Event.PUT, kv=key_value_message(event.now))
    else:
        message = wire.Event(type=wire.Event.DELETE, kv=wire.KeyValue(key=event.key, mod_revision=event.revision))
    if wants_before and event.before is not None:
        message.prev_kv.CopyFrom(key_value_message(event.before))
    return message
