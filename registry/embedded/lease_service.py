"""etcd's Lease service over the built-in store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from registry.embedded.store import EtcdStore
from registry.embedded.store_errors import LeaseNotFound
from registry.etcd import wire


class LeaseService:
    """`header` makes the response header for the store's revision at that moment. `sweep` ends leases in time."""

    def __init__(self, store: EtcdStore, header: Callable[[], Any]) -> None:
        self._store = store
        self._header = header
        self._granted = asyncio.Event()

    async def sweep(self) -> None:
        """Runs until cancelled."""
        while True:
            self._granted.clear()
            self._store.expire_leases()
            try:
                async with asyncio.timeout(self._store.leases.next_expiry_s()):
                    await self._granted.wait()
            except TimeoutError:
                continue

    async def LeaseGrant(self, request: Any, context: Any) -> Any:
        entry = self._store.leases.grant(request.ID or None, request.TTL)
        self._granted.set()
        return wire.LeaseGrantResponse(header=self._header(), ID=entry.id, TTL=entry.ttl_s)

    async def LeaseRevoke(self, request: Any, context: Any) -> Any:
        self._store.revoke(request.ID)
        return wire.LeaseRevokeResponse(header=self._header())

    async def LeaseKeepAlive(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            try:
                ttl_s = self._store.leases.renew(request.ID).ttl_s
            except LeaseNotFound:
                ttl_s = 0
            yield wire.LeaseKeepAliveResponse(header=self._header(), ID=request.ID, TTL=ttl_s)

    async def LeaseTimeToLive(self, request: Any, context: Any) -> Any:
        try:
            entry = self._store.leases.get(request.ID)
        except LeaseNotFound:
            return wire.LeaseTimeToLiveResponse(header=self._header(), ID=request.ID, TTL=-1)
        return wire.LeaseTimeToLiveResponse(
            header=self._header(),
            ID=entry.id,
            TTL=int(self._store.leases.remaining_s(entry)),
            grantedTTL=entry.ttl_s,
            keys=sorted(entry.keys) if request.keys else [],
        )

    async def LeaseLeases(self, request: Any, context: Any) -> Any:
        leases = [wire.LeaseStatus(ID=lease_id) for lease_id in self._store.leases.ids()]
        return wire.LeaseLeasesResponse(header=self._header(), leases=leases)
