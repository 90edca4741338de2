"""An asyncio client of the part of etcd's API that the registry uses. Every call has a deadline."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from registry.errors import LeaseLost, RegistryError
from registry.etcd import wire
from registry.etcd.config import EtcdConfig
from registry.etcd.connection import EtcdConnection
from registry.etcd.watch_stream import KeyValue, WatchStream, key_value, prefix_end


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys under a prefix as of `revision`, by key; `cluster_id` tells one server's history from another's."""

    key_values: tuple[KeyValue, ...]
    revision: int
    cluster_id: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease; `ttl_s` is what etcd gave, which may be more than was asked for."""

    id: int
    ttl_s: int


class EtcdClient:
    """Calls raise RegistryUnavailable when no endpoint answers in time, RegistryDenied, LeaseLost or RegistryError."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self._connection = EtcdConnection(config)

    async def __aenter__(self) -> "EtcdClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls and streams of this client."""
        await self._connection.close()

    async def get(self, key: str) -> KeyValue | None:
        answer = await self._connection.call(wire.KVStub, "Range", wire.RangeRequest(key=key.encode()))
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def get_prefix(self, prefix: str) -> Listing:
        """`prefix` is not empty."""
        request = wire.RangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
        answer = await self._connection.call(wire.KVStub, "Range", request)
        key_values = tuple(key_value(kv) for kv in answer.kvs)
        return Listing(key_values, answer.header.revision, answer.header.cluster_id)

    async def put(self, key: str, value: bytes, lease_id: int | None = None) -> int:
        """Puts whatever was there before; gives the revision. Raises LeaseLost when the lease is gone."""
        answer = await self._connection.call(wire.KVStub, "Put", _put_request(key, value, lease_id))
        return int(answer.header.revision)

    async def replace(self, key: str, value: bytes, previous: KeyValue | None, lease_id: int | None) -> int | None:
        """Puts only if the key still is as in `previous` (None: absent); gives the revision, None if it is not so.

        Raises LeaseLost when the lease is gone.
        """
        compare = wire.Compare(
            key=key.encode(),
            target=wire.Compare.MOD,
            result=wire.Compare.EQUAL,
            mod_revision=0 if previous is None else previous.mod_revision,
        )
        put = wire.RequestOp(request_put=_put_request(key, value, lease_id))
        answer = await self._connection.call(wire.KVStub, "Txn", wire.TxnRequest(compare=[compare], success=[put]))
        return int(answer.header.revision) if answer.succeeded else None

    async def delete(self, key: str) -> bool:
        """Whether there was such a key."""
        answer = await self._connection.call(wire.KVStub, "DeleteRange", wire.DeleteRangeRequest(key=key.encode()))
        return bool(answer.deleted)

    async def compact(self, revision: int) -> None:
        """Drops the history before `revision`; watches from before it raise Compacted."""
        await self._connection.call(wire.KVStub, "Compact", wire.CompactionRequest(revision=revision))

    async def grant(self, ttl_s: int) -> Lease:
        answer = await self._connection.call(wire.LeaseStub, "LeaseGrant", wire.LeaseGrantRequest(TTL=ttl_s))
        if answer.error:
            raise RegistryError(f"etcd {self.config.endpoints}: no lease of {ttl_s} s: {answer.error}")
        return Lease(answer.ID, answer.TTL)

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> int:
        """Renews the lease once; gives its full TTL in seconds. Raises LeaseLost when etcd no longer has it.

        Each renewal is its own short stream, so that no renewal waits behind an endpoint that went silent.
        """
        request = wire.LeaseKeepAliveRequest(ID=lease_id)
        answer = await self._connection.call(_KeepAliveOnce, "renew", request, timeout_s)
        if answer.TTL <= 0:
            raise LeaseLost(f"etcd {self.config.endpoints}: lease {lease_id:x} answers TTL 0")
        return int(answer.TTL)

    async def revoke(self, lease_id: int, timeout_s: float | None = None) -> None:
        """Ends the lease and deletes the keys under it. Raises LeaseLost when etcd no longer has it."""
        request = wire.LeaseRevokeRequest(ID=lease_id)
        await self._connection.call(wire.LeaseStub, "LeaseRevoke", request, timeout_s)

    @asynccontextmanager
    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[WatchStream]:
        """All events under `prefix` from `start_revision` on; the stream is open once this is entered."""
        stream = WatchStream(self._connection, prefix, start_revision)
        try:
            await stream.open()
            yield stream
        finally:
            stream.close()


class _KeepAliveOnce:
    """The LeaseKeepAlive stream, used for one question and one answer."""

    def __init__(self, channel: Any) -> None:
        self._stub = wire.LeaseStub(channel)

    async def renew(self, request: Any, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109  # called as a stub
        stream = self._stub.LeaseKeepAlive(timeout=timeout, metadata=metadata)
        try:
            await stream.write(request)
            async for answer in stream:
                return answer
            raise LeaseLost(f"lease {request.ID:x}: the stream ended without an answer")
        finally:
            stream.cancel()


def _put_request(key: str, value: bytes, lease_id: int | None) -> Any:
    return wire.PutRequest(key=key.encode(), value=value, lease=lease_id or 0)
