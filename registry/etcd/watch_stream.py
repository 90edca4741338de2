"""One watch on etcd: opened once, read until it breaks, never re-opened."""

import asyncio
from dataclasses import dataclass
from typing import Any

from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from registry.errors import Compacted, RegistryError, RegistryUnavailable
from registry.etcd import wire
from registry.etcd.connection import REQUIRE_LEADER, EtcdConnection


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd holds it; `lease_id` is None for a key that stays until deleted."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int | None


@dataclass(frozen=True, slots=True)
class Put:
    """A key was written."""

    key_value: KeyValue


@dataclass(frozen=True, slots=True)
class Delete:
    """A key was deleted, or its lease ended, at `revision`."""

    key: str
    revision: int


WatchEvent = Put | Delete


class WatchStream:
    """Events of one prefix from one revision on, in order; `revision` and `cluster_id` are the server's when opened.

    A server that falls silent is found by asking it for progress: etcd answers in order with the events.
    """

    def __init__(self, connection: EtcdConnection, prefix: str, start_revision: int) -> None:
        self._connection = connection
        self._prefix = prefix
        self._start_revision = start_revision
        self._call: Any = None
        self._reading: asyncio.Task[Any] | None = None
        self.revision = 0
        self.cluster_id = 0

    async def open(self) -> None:
        """Returns when the server has taken the watch. Raises RegistryUnavailable, RegistryDenied or Compacted."""
        try:
            async with asyncio.timeout(self._connection.config.timeout_s), self._connection.translated_errors():
                await self._create()
        except TimeoutError as error:
            raise self._silent(self._connection.config.timeout_s) from error

    async def read(self, silence_s: float) -> list[WatchEvent]:
        """The next events, in order; empty when the server only said that it is there.

        After `silence_s` without a word the server is asked for progress; after another `timeout_s` of silence this
        raises RegistryUnavailable. Raises Compacted when events since the start are lost, RegistryError when the
        server ends the watch for another reason.
        """
        timeout_s = self._connection.config.timeout_s
        async with self._connection.translated_errors():
            response = await self._next(silence_s)
            if response is None:
                response = await self._ask_for_progress(timeout_s)
        if response is None:
            raise self._silent(silence_s + timeout_s)
        self._raise_if_canceled(response)
        return [_event(event) for event in response.events]

    def close(self) -> None:
        """Ends the stream; a read that waits raises RegistryUnavailable."""
        if self._call is not None:
            self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()

    async def _create(self) -> None:
        channel = await self._connection.channel()
        metadata = await self._connection.token() + REQUIRE_LEADER
        self._call = wire.WatchStub(channel).Watch(metadata=metadata)
        create = wire.WatchCreateRequest(
            key=self._prefix.encode(), range_end=prefix_end(self._prefix), start_revision=self._start_revision
        )
        await self._call.write(wire.WatchRequest(create_request=create))
        response = await self._call.read()
        if response is EOF:
            raise RegistryUnavailable(f"{self._prefix}: etcd ended the watch at once")
        self._raise_if_canceled(response)
        self.revision, self.cluster_id = response.header.revision, response.header.cluster_id

    async def _next(self, limit_s: float) -> Any:
        """The next response, None when there is none within `limit_s`. Cancelling a read would end the whole call."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._call.read())
            self._reading.add_done_callback(_take_error)
        done, _ = await asyncio.wait({self._reading}, timeout=limit_s)
        if not done:
            return None
        reading, self._reading = self._reading, None
        response = reading.result()
        if response is EOF:
            raise RegistryUnavailable(f"{self._prefix}: etcd ended the watch")
        return response

    async def _ask_for_progress(self, limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                await self._call.write(wire.progress_request())
        except TimeoutError:
            return None
        return await self._next(limit_s)

    def _raise_if_canceled(self, response: Any) -> None:
        if response.compact_revision > 0:
            raise Compacted(self._start_revision, response.compact_revision)
        if response.canceled:
            # etcd 3.4 says "permission denied" for a token it does not know as well: log in anew for the next watch.
            self._connection.drop_token()
            raise RegistryError(f"{self._prefix}: etcd ended the watch: {response.cancel_reason or 'no reason given'}")

    def _silent(self, silent_s: float) -> RegistryUnavailable:
        return RegistryUnavailable(f"{self._prefix}: nothing heard on the watch for {silent_s:g} s")


def _take_error(reading: asyncio.Task[Any]) -> None:
    """A read that fails after the stream was left is nobody's error; asyncio would report it as never retrieved."""
    if not reading.cancelled():
        reading.exception()


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys with this prefix; a prefix of text always has one."""
    key = prefix.encode()
    assert key, "an empty prefix has no end"
    return key[:-1] + bytes([key[-1] + 1])  # UTF-8 never holds 0xff


def key_value(message: Any) -> KeyValue:
    """Reads etcd's message."""
    return KeyValue(
        message.key.decode(errors="surrogateescape"),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.lease or None,
    )


def _event(message: Any) -> WatchEvent:
    stored = key_value(message.kv)
    return Delete(stored.key, stored.mod_revision) if message.type == wire.Event.DELETE else Put(stored)
