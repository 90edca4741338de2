"""A small etcd inside this process, for when no real one is given.

It speaks etcd's own KV, Lease and Watch services, so that workers, other masters and `etcdctl` cannot tell. It is one
node, keeps everything in memory, has no TLS and no users, and is meant for a single machine: for more, run etcd.
"""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from registry.embedded.kv_service import KVService
from registry.embedded.lease_service import LeaseService
from registry.embedded.store import EtcdStore
from registry.embedded.store_errors import StoreError
from registry.embedded.watch_service import WatchService
from registry.etcd import wire
from registry.etcd.endpoints import Endpoint

API_VERSION = "3.4.23"  # the etcd whose answers these services follow
RAFT_TERM = 1

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # otherwise a second server on the port would silently share it
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 2 * 1024 * 1024),  # etcd's request limit is 1.5 MiB
)


class EmbeddedEtcd:
    """Serves from `start` to `close`; port 0 takes a free one. An empty store each time, as another cluster."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, store: EtcdStore | None = None) -> None:
        self._host = host
        self._port = port
        self._store = store or EtcdStore()
        # New in every life: clients see by it that the revisions they know are of another history.
        self._cluster_id = random.randrange(1, 1 << 63)
        self._member_id = random.randrange(1, 1 << 63)
        self._server: Any = None
        self._sweeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EmbeddedEtcd":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """`host:port` as bound, for clients' `etcd_addr`."""
        return str(Endpoint(self._host, self._port))

    async def start(self) -> None:
        """Raises OSError naming the address when it cannot be bound."""
        assert self._server is None, "a server starts once"
        leases = LeaseService(self._store, self._header)
        server = grpc.aio.server(interceptors=[_StatusInterceptor()], options=SERVER_OPTIONS)
        wire.add_kv_servicer(KVService(self._store, self._header), server)
        wire.add_lease_servicer(leases, server)
        wire.add_watch_servicer(WatchService(self._store, self._header), server)
        wire.add_cluster_servicer(_ClusterService(self._header, self._member), server)
        wire.add_maintenance_servicer(_MaintenanceService(self._header, self._store), server)
        try:
            self._port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(f"etcd cannot listen on {self.address}: in use, or not an address here") from error
        await server.start()
        self._server = server
        self._sweeping = asyncio.create_task(leases.sweep(), name="embedded etcd leases")

    async def close(self) -> None:
        """Ends all calls and streams at once."""
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=None)

    def _header(self) -> Any:
        return wire.ResponseHeader(
            cluster_id=self._cluster_id,
            member_id=self._member_id,
            revision=self._store.revision,
            raft_term=RAFT_TERM,
        )

    def _member(self) -> Any:
        return wire.Member(ID=self._member_id, name="pdserve", clientURLs=[f"http://{self.address}"])


class _ClusterService(wire.ClusterServicer):  # type: ignore[misc]  # untyped base; what is not here is unimplemented
    def __init__(self, header: Callable[[], Any], member: Callable[[], Any]) -> None:
        self._header = header
        self._member = member

    async def MemberList(self, request: Any, context: Any) -> Any:
        return wire.MemberListResponse(header=self._header(), members=[self._member()])


class _MaintenanceService(wire.MaintenanceServicer):  # type: ignore[misc]  # as above
    def __init__(self, header: Callable[[], Any], store: EtcdStore) -> None:
        self._header = header
        self._store = store

    async def Status(self, request: Any, context: Any) -> Any:
        header = self._header()
        return wire.StatusResponse(
            header=header,
            version=API_VERSION,
            dbSize=self._store.num_bytes(),
            leader=header.member_id,
            raftIndex=header.revision,
            raftTerm=RAFT_TERM,
        )


class _StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in its stubs
    """Turns the store's errors into gRPC statuses, in one place for all unary calls, and says what there is not."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not (inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)):
            return _unimplemented(details.method)  # the package's base class would raise
        if handler.unary_unary is None:
            return handler

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await inner(request, context)
            except StoreError as error:
                await context.abort(grpc.StatusCode[error.code], error.text)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _unimplemented(method: str) -> Any:
    async def refuse(requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the built-in etcd has no {method}")

    return grpc.stream_stream_rpc_method_handler(refuse)  # on the wire all forms are the same
