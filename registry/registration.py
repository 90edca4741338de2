"""Keeps one record in the registry for as long as its process lives.

Phases, in a circle until closed: seeking (no lease; tries with growing pauses) → held (record under a living lease)
→ lost (etcd says so, or has not answered for 2/3 of the TTL) → seeking, as the next incarnation.

The start of a life is news: whatever incarnation is stored then, it comes after it, also where the clock went back. A
newer incarnation found under the key later on has superseded this life; when that one goes, this one comes after it.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from registry.backoff import Backoff
from registry.errors import LeaseLost, NewerIncarnation, RegistryError
from registry.etcd.client import EtcdClient, Lease
from registry.etcd.watch_stream import KeyValue
from registry.instance import Record, decode_incarnation, encode_record, record_key

logger = logging.getLogger(__name__)


class Registration:
    """Owns a lease and the one key under it.

    `on_incarnation` is called with each new incarnation before the registry shows it. Nothing that happens to etcd
    ends the registration or the process; only `close` does, which also removes the key.
    """

    def __init__(
        self,
        client: EtcdClient,
        cluster: str,
        record: Record,
        *,
        ttl_s: int = 10,
        on_incarnation: Callable[[int], None] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Raises ValueError for a name that cannot be part of a key."""
        self.key = record_key(cluster, record)
        self._cluster = cluster
        self._client = client
        self._record = record
        self._ttl_s = ttl_s
        self._on_incarnation = on_incarnation
        self._backoff = backoff or Backoff()
        self._lease: Lease | None = None
        self._newer: NewerIncarnation | None = None
        self._was_put = False
        self._is_troubled = False
        self._changed = asyncio.Event()  # the record differs from what was last put
        self._settled = asyncio.Event()  # it is put, or a newer incarnation is in its place
        self._task: asyncio.Task[None] | None = None

    @property
    def record(self) -> Record:
        """What is, or will be, in the registry."""
        return self._record

    @property
    def _incarnation(self) -> int:
        return self._record.incarnation

    @property
    def newer(self) -> NewerIncarnation | None:
        """What stands in the place of the record, as far as is known."""
        return self._newer

    async def __aenter__(self) -> "Registration":
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begins to register, whether etcd is there or not. Needs a running event loop."""
        assert self._task is None, "a registration starts once"
        self._task = asyncio.create_task(self._run(), name=f"registration {self.key}")

    async def registered(self, timeout_s: float) -> None:
        """Returns when the registry holds the current record.

        Raises NewerIncarnation when another life of the same name has its place, TimeoutError after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            await self._settled.wait()
        if self._newer is not None:
            raise self._newer

    def update(self, record: Record) -> None:
        """Puts a changed record (role, draining) as soon as possible, with the current incarnation whatever it says."""
        assert record_key(self._cluster, record) == self.key, "another name is another registration"
        self._record = dataclasses.replace(record, incarnation=self._record.incarnation)
        self._unsettle()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Removes the key and its lease within `timeout_s`; without an answer etcd does so when the TTL is over."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._unsettle()
        await self._release(timeout_s)

    async def _run(self) -> None:
        while True:
            try:
                await self._seek_and_hold()
            except LeaseLost as error:
                self._lease = None
                self._unsettle()
                self._follow_incarnation(self._record.incarnation)
                logger.warning("%s: lost, coming back as incarnation %d: %s", self.key, self._incarnation, error)
            except NewerIncarnation as error:
                self._yield_to(error)
                await self._release(self._client.config.timeout_s)
            except RegistryError as error:
                self._note_trouble(error)
            except Exception:
                logger.exception("%s: registration failed, trying again", self.key)
            await asyncio.sleep(self._backoff.next_s())

    async def _seek_and_hold(self) -> None:
        """Ends only with an error."""
        await self._check_holder()
        if self._lease is None:
            self._lease = await self._client.grant(self._ttl_s)
        self._unsettle()
        await self._hold(self._lease)

    async def _hold(self, lease: Lease) -> None:
        """Keeps record and lease fresh. Raises LeaseLost or NewerIncarnation."""
        loop = asyncio.get_running_loop()
        answered_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(answered_at + lease.ttl_s * 2 / 3):
                    answered_at = await self._refresh(lease)
            except TimeoutError as error:
                raise LeaseLost(f"no answer for 2/3 of a TTL of {lease.ttl_s} s") from error
            self._note_well()
            await self._wait_for_change(answered_at + lease.ttl_s / 3)

    async def _refresh(self, lease: Lease) -> float:
        """Renews the lease and puts a changed record; gives when the question was sent that got the answer."""
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            try:
                await self._client.keep_alive(lease.id, timeout_s=lease.ttl_s / 4)
                if self._changed.is_set():
                    await self._publish(lease)
                else:
                    await self._check_key(lease)
                return asked_at
            except (LeaseLost, NewerIncarnation):
                raise
            except RegistryError as error:
                self._note_trouble(error)
                await asyncio.sleep(min(self._backoff.next_s(), lease.ttl_s / 12))

    async def _publish(self, lease: Lease) -> None:
        """Puts the record unless a newer incarnation has its place, by a transaction on what was read."""
        while True:
            previous = await self._check_holder()
            record = self._record
            if await self._client.replace(self.key, encode_record(record), previous, lease.id) is not None:
                break
        self._was_put = True
        if record is not self._record:
            return
        self._changed.clear()
        self._newer = None
        self._settled.set()
        logger.info("%s: registered as incarnation %d", self.key, record.incarnation)

    async def _check_key(self, lease: Lease) -> None:
        """A living lease does not mean that the key is still there: it may be deleted, or taken by another life."""
        stored = await self._check_holder()
        if stored is None or stored.lease_id != lease.id:
            raise LeaseLost(f"{self.key} was {'deleted' if stored is None else 'overwritten'} by someone else")

    async def _check_holder(self) -> KeyValue | None:
        """What is under the key. Raises NewerIncarnation."""
        stored = await self._client.get(self.key)
        if stored is None:
            if self._newer is not None:
                self._follow_incarnation(self._newer.held_by)
            return None
        try:
            held_by = decode_incarnation(stored.value)
        except ValueError as error:
            logger.warning("%s: replacing what is there: %s", self.key, error)
            return stored
        if not self._was_put and held_by >= self._incarnation:
            self._follow_incarnation(held_by)
        elif held_by > self._incarnation:
            raise NewerIncarnation(self.key, self._incarnation, held_by)
        return stored

    async def _wait_for_change(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            return

    def _unsettle(self) -> None:
        self._changed.set()
        self._settled.clear()

    def _follow_incarnation(self, other: int) -> None:
        """Become the one after `other`, unless this one is later already."""
        if self._incarnation > other:
            return
        self._record = dataclasses.replace(self._record, incarnation=other + 1)
        if self._on_incarnation is not None:
            self._on_incarnation(other + 1)

    def _yield_to(self, error: NewerIncarnation) -> None:
        if self._newer is None:
            logger.warning("%s: not registered: %s", self.key, error)
        self._newer = error
        self._settled.set()

    def _note_trouble(self, error: RegistryError) -> None:
        if not self._is_troubled:
            logger.warning("%s: no answer from the registry, or a refusal; trying on: %s", self.key, error)
        self._is_troubled = True

    def _note_well(self) -> None:
        if self._is_troubled:
            logger.info("%s: the registry answers again", self.key)
        self._is_troubled = False
        self._backoff.reset()

    async def _release(self, timeout_s: float) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            await self._client.revoke(lease.id, timeout_s)
        except LeaseLost:
            return
        except RegistryError as error:
            logger.warning("%s: its lease was not revoked, and ends in %d s: %s", self.key, lease.ttl_s, error)
