"""One gRPC channel to etcd with its stubs, its login, and the translation of gRPC's errors into the registry's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from registry.errors import LeaseLost, RegistryDenied, RegistryError, RegistryUnavailable
from registry.etcd import wire
from registry.etcd.config import EtcdConfig
from registry.etcd.endpoints import grpc_target, parse_endpoints

Metadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # etcd closes connections that are pinged more often than every 5 s, or while there is no call on them. A dead
    # connection without a stream is ended by TCP's user timeout, which gRPC sets to the keepalive's.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own default waits up to two minutes before it looks again whether etcd is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A listing of many workers is larger than gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)

# etcd cancels a stream so marked when its member is cut off from the others, instead of leaving it silent.
REQUIRE_LEADER: Metadata = (("hasleader", "true"),)

_STALE_TOKEN_DETAILS = ("user name is empty", "revision of auth store is old")


class EtcdConnection:
    """Owns the channel. Stubs are valid until `reset` or `close`, which end all calls on them."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self._endpoints = parse_endpoints(config.endpoints)
        self._lock = asyncio.Lock()
        self._channel: Any = None
        self._target = ""
        self._token: Metadata | None = None
        self._closed = False

    async def call(self, stub: Callable[[Any], Any], method: str, request: Any, timeout_s: float | None = None) -> Any:
        """Makes one call, on another endpoint when one is gone, within `timeout_s` (default: the configuration's).

        Raises RegistryUnavailable, RegistryDenied, LeaseLost or RegistryError.
        """
        limit_s = self.config.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s), self.translated_errors():
                return await self._call(stub, method, request, limit_s)
        except TimeoutError as error:
            raise RegistryUnavailable(f"etcd {self.config.endpoints}: {method} took over {limit_s:g} s") from error

    async def _call(self, stub: Callable[[Any], Any], method: str, request: Any, limit_s: float) -> Any:
        tries_left = len(self._endpoints)
        logged_in_again = False
        while True:
            channel = await self.channel()
            try:
                token = await self.token()
                return await getattr(stub(channel), method)(request, timeout=limit_s, metadata=token)
            except grpc.aio.AioRpcError as error:
                tries_left -= 1
                if self._drop_token_if_stale(error) and not logged_in_again:
                    logged_in_again = True
                elif error.code() is not grpc.StatusCode.UNAVAILABLE or tries_left <= 0:
                    if error.code() is grpc.StatusCode.UNAVAILABLE:
                        await self._reset_if_moved()
                    raise

    async def channel(self) -> Any:
        """The channel, made on first use. Raises RegistryUnavailable when no endpoint's name is known."""
        async with self._lock:
            if self._closed:
                raise RegistryUnavailable(f"the client of etcd {self.config.endpoints} is closed")
            if self._channel is None:
                self._target = await self._resolve()
                self._channel = self._open(self._target)
            return self._channel

    async def token(self) -> Metadata:
        """The metadata that names the user, logged in on first use; empty without a user. Raises AioRpcError."""
        if self.config.user is None:
            return ()
        channel = await self.channel()
        async with self._lock:
            if self._token is None:
                self._token = await self._log_in(channel)
            return self._token

    def drop_token(self) -> None:
        """The next call logs in again."""
        self._token = None

    @asynccontextmanager
    async def translated_errors(self) -> AsyncIterator[None]:
        """Raises the registry's errors for gRPC's, and RegistryUnavailable for a channel that closed underneath."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise _translated(error, self.config.endpoints) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise RegistryUnavailable(f"etcd {self.config.endpoints}: the channel is closed") from error
        except asyncio.CancelledError as error:
            # grpc.aio raises it as well when the channel is closed under a call that nobody has cancelled.
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:
                raise
            raise RegistryUnavailable(f"etcd {self.config.endpoints}: the channel is closed") from error

    async def close(self) -> None:
        self._closed = True
        await self._drop_channel()

    def _drop_token_if_stale(self, error: grpc.aio.AioRpcError) -> bool:
        """Forgets the token when the error says that etcd does not know it; the next call logs in again."""
        is_stale = error.code() is grpc.StatusCode.UNAUTHENTICATED or (
            error.code() is grpc.StatusCode.INVALID_ARGUMENT
            and any(text in (error.details() or "") for text in _STALE_TOKEN_DETAILS)
        )
        if self.config.user is None or not is_stale:
            return False
        self.drop_token()
        return True

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _reset_if_moved(self) -> None:
        if len(self._endpoints) == 1 or all(endpoint.is_literal for endpoint in self._endpoints):
            return
        if await self._resolve() != self._target:
            await self._drop_channel()

    async def _resolve(self) -> str:
        try:
            return await grpc_target(self._endpoints, self.config.timeout_s)
        except OSError as error:  # TimeoutError is one
            raise RegistryUnavailable(
                f"etcd {self.config.endpoints}: {error or 'the name service is silent'}"
            ) from error

    def _open(self, target: str) -> Any:
        options: list[tuple[str, Any]] = list(CHANNEL_OPTIONS)
        if not self.config.is_secure:
            return grpc.aio.insecure_channel(target, options=options)
        if len(self._endpoints) > 1:
            # All addresses are one target to gRPC; the members' certificates are checked against the first host.
            options.append(("grpc.ssl_target_name_override", self._endpoints[0].host))
        credentials = grpc.ssl_channel_credentials(
            _read(self.config.ca_file), _read(self.config.key_file), _read(self.config.cert_file)
        )
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def _log_in(self, channel: Any) -> Metadata:
        request = wire.AuthenticateRequest(name=self.config.user, password=self.config.password)
        authenticate: Callable[..., Awaitable[Any]] = wire.AuthStub(channel).Authenticate
        try:
            answer = await authenticate(request, timeout=self.config.timeout_s)
        except grpc.aio.AioRpcError as error:
            # A user may be configured before authentication is enabled; etcd then takes calls without a token.
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return ()
            raise
        return (("token", answer.token),)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _translated(error: grpc.aio.AioRpcError, endpoints: str) -> RegistryError:
    details = error.details() or error.code().name
    message = f"etcd {endpoints}: {details}"
    match error.code():
        case (
            grpc.StatusCode.UNAVAILABLE
            | grpc.StatusCode.DEADLINE_EXCEEDED
            | grpc.StatusCode.CANCELLED
            | grpc.StatusCode.UNKNOWN
        ):
            return RegistryUnavailable(message)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return RegistryDenied(message)
        case grpc.StatusCode.INVALID_ARGUMENT if "user" in details or "auth" in details:
            return RegistryDenied(message)
        case grpc.StatusCode.NOT_FOUND if "lease" in details:
            return LeaseLost(message)
        case _:
            return RegistryError(f"{message} ({error.code().name})")
