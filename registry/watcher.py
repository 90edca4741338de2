"""What changes under one prefix of the registry, whatever happens to the connection or the server.

Phases, in a circle until closed: list → follow (watch from the listing's revision on) → cut (try again with growing
pauses, from the last revision seen) → follow; or, when the server no longer has that history, list again and compare.
"""

import asyncio
import logging
from dataclasses import dataclass

from registry.backoff import Backoff
from registry.errors import Compacted, HistoryRestarted, RegistryError
from registry.etcd.client import EtcdClient, Listing
from registry.etcd.watch_stream import KeyValue, Put, WatchEvent, WatchStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Added:
    """A key that was not there."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Updated:
    """A key that was there was written again; or deleted and written again before the reader looked."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A key that is gone; `value` is the last one that was told."""

    key: str
    value: bytes
    revision: int


Change = Added | Updated | Removed


class PrefixWatcher:
    """An endless async iterator of changes for one reader; it begins with an Added for every key that is there.

    Each change is told once. A reader that is slow gets, per key, the sum of what it missed, so that memory is
    bounded by the keys that exist. While the registry is away nothing is told and nothing is forgotten.
    """

    def __init__(
        self, client: EtcdClient, prefix: str, *, silence_s: float = 10.0, backoff: Backoff | None = None
    ) -> None:
        """`silence_s`: for how long a watch may be silent before the server is asked whether it is still there."""
        self.prefix = prefix
        self._client = client
        self._silence_s = silence_s
        self._backoff = backoff or Backoff()
        self._revision: int | None = None  # up to here everything is known; None: list first
        self._cluster_id = 0
        self._present: dict[str, KeyValue] = {}  # what the registry has, as far as is known
        self._told: dict[str, KeyValue] = {}  # what the reader knows
        self._untold: dict[str, int] = {}  # key → revision of its last change, where the two differ
        self._is_cut = False  # until it is followed again
        self._listed = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "PrefixWatcher":
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begins to watch, whether etcd is there or not. Needs a running event loop."""
        assert self._task is None, "a watcher starts once"
        self._task = asyncio.create_task(self._run(), name=f"watch {self.prefix}")

    async def listed(self, timeout_s: float) -> None:
        """Returns when the prefix was read for the first time. Raises TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            await self._listed.wait()

    async def close(self) -> None:
        """Ends the watch and the iteration."""
        self._is_closed = True
        self._wake.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def __aiter__(self) -> "PrefixWatcher":
        return self

    async def __anext__(self) -> Change:
        while not self._is_closed:
            if self._untold:
                return self._tell(next(iter(self._untold)))
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    async def _run(self) -> None:
        while True:
            try:
                if self._revision is None:
                    self._compare(await self._client.get_prefix(self.prefix))
                await self._follow()
            except (Compacted, HistoryRestarted) as error:
                logger.info("%s: reading it anew: %s", self.prefix, error)
                self._revision = None
            except RegistryError as error:
                self._note_cut(error)
            except Exception:
                logger.exception("%s: watching failed, trying again", self.prefix)
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        """Ends only with an error."""
        assert self._revision is not None, "followed before it was listed"
        async with self._client.watch(self.prefix, self._revision + 1) as stream:
            self._check_history(stream, self._revision)
            self._note_following()
            while True:
                for event in await stream.read(self._silence_s):
                    self._apply(event)
                self._backoff.reset()

    def _check_history(self, stream: WatchStream, revision: int) -> None:
        """A server without a disk begins its revisions anew: what it says next would never reach ours."""
        if stream.cluster_id != self._cluster_id:
            raise HistoryRestarted(f"etcd is cluster {stream.cluster_id:x}, was {self._cluster_id:x}")
        if stream.revision < revision:
            raise HistoryRestarted(f"etcd is at revision {stream.revision}, was at {revision}")

    def _compare(self, listing: Listing) -> None:
        listed = {kv.key: kv for kv in listing.key_values}
        for key in self._present.keys() - listed.keys():
            self._set(key, None, listing.revision)
        for key, kv in listed.items():
            self._set(key, kv, kv.mod_revision)
        self._revision = listing.revision
        self._cluster_id = listing.cluster_id
        self._listed.set()

    def _apply(self, event: WatchEvent) -> None:
        if isinstance(event, Put):
            key, kv, revision = event.key_value.key, event.key_value, event.key_value.mod_revision
        else:
            key, kv, revision = event.key, None, event.revision
        self._set(key, kv, revision)
        self._revision = revision

    def _set(self, key: str, kv: KeyValue | None, revision: int) -> None:
        if kv is None:
            self._present.pop(key, None)
        else:
            self._present[key] = kv
        if kv == self._told.get(key):
            self._untold.pop(key, None)
        else:
            self._untold[key] = revision
            self._wake.set()

    def _tell(self, key: str) -> Change:
        revision = self._untold.pop(key)
        before, now = self._told.get(key), self._present.get(key)
        if now is None:
            assert before is not None, f"{key}: absent before and after is no change"
            del self._told[key]
            return Removed(key, before.value, revision)
        self._told[key] = now
        return (Added if before is None else Updated)(key, now.value, revision)

    def _note_following(self) -> None:
        logger.info("%s: following from revision %d, %d keys", self.prefix, self._revision, len(self._present))
        self._is_cut = False

    def _note_cut(self, error: RegistryError) -> None:
        if not self._is_cut:
            logger.warning(
                "%s: the registry is away, keeping %d keys and trying on: %s", self.prefix, len(self._present), error
            )
        self._is_cut = True
