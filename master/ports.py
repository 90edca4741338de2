"""The ports at which clients ask a master: HTTP and gRPC, with the same keys and the same certificate."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable

import grpc
from prometheus_client import CollectorRegistry

from config.address import join_host_port
from master.config import MasterConfig
from master.edge.app import create_app
from master.edge.grpc.server import client_server
from master.edge.http.config import HttpConfig
from master.parsing.formats import ParserChoice
from master.service import Service
from serving.grpc_server import GrpcServer
from serving.http_server import HttpServer
from serving.keys import Keys
from serving.process_life import bind

CLOSE_S = 1.0


class MasterPorts:
    """`bind`, so that the ports are known, then `start`, `leave` and `drained`."""

    def __init__(
        self, config: MasterConfig, service: Service, parsers: ParserChoice, metrics: CollectorRegistry
    ) -> None:
        """Raises FlagError for a key or a certificate that cannot be used."""
        self._config = config
        self._keys = config.api_keys()
        self._tls = config.client_tls()
        self._http = _http_server(
            config, service, parsers, metrics, self._keys, None if self._tls is None else self._tls.context
        )
        self._rpc = _rpc_server(
            config, service, parsers, self._keys, None if self._tls is None else self._tls.grpc_credentials()
        )

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    @property
    def has_tls(self) -> bool:
        return self._tls is not None

    @property
    def url(self) -> str:
        return self._http.url

    def http_address(self, host: str) -> str:
        """Where HTTP is reached by those who know this machine as `host`."""
        return self._http.address(host)

    def rpc_address(self, host: str) -> str:
        """Where gRPC is reached by those who know this machine as `host`."""
        return join_host_port(host, self._rpc.address.port)

    async def bind(self, stack: contextlib.AsyncExitStack) -> None:
        """Leaves the closing to the stack. Raises FlagError naming the flag of a port that can't be had."""
        await self._bind_http(self._http.bind())
        stack.push_async_callback(self._http.stop, CLOSE_S)
        await bind("rpc_server_port", self._config.rpc_server_port, self._rpc.bind())
        stack.push_async_callback(self._rpc.close, CLOSE_S)

    async def start(self) -> None:
        """Clients can connect from now on. Raises FlagError as `bind` does."""
        await self._bind_http(self._http.start())
        await self._rpc.start()

    def leave(self) -> None:
        """HTTP connections close with their next answer from now on."""
        self._http.leave()

    async def drained(self) -> None:
        """Takes nothing new; returns when nothing is left."""
        await asyncio.gather(self._http.stop(None), self._rpc.close(self._config.drain_timeout_s))

    def read_secrets_again(self) -> None:
        if self._keys is not None:
            self._keys.reload()
        if self._tls is not None:
            self._tls.reload()

    async def _bind_http(self, start: Awaitable[None]) -> None:
        if self._config.uds is not None:
            await bind("uds", self._config.uds, start)
        else:
            await bind("http_server_port", self._config.http_server_port, start)


def _http_server(
    config: MasterConfig,
    service: Service,
    parsers: ParserChoice,
    metrics: CollectorRegistry,
    keys: Keys | None,
    tls: ssl.SSLContext | None,
) -> HttpServer:
    http_config = HttpConfig(
        max_body_bytes=config.max_body_bytes,
        slow_reader_timeout_s=config.slow_reader_timeout_s,
        cors_origins=config.cors_origins,
        parsers=parsers,
        max_stored_responses=config.max_stored_responses,
        keep_responses_s=config.keep_responses_s,
        shows_tokenizer=config.enable_tokenizer_info,
        has_dashboard=config.dashboard,
    )
    return HttpServer(
        create_app(service, http_config, metrics, keys=keys),
        config.host,
        config.http_server_port,
        uds=config.uds,
        tls=tls,
        root_path=config.root_path,
        keep_alive_s=config.keep_alive_s,
    )


def _rpc_server(
    config: MasterConfig,
    service: Service,
    parsers: ParserChoice,
    keys: Keys | None,
    credentials: grpc.ServerCredentials | None,
) -> GrpcServer:
    return client_server(
        service,
        config.host,
        config.rpc_server_port,
        credentials=credentials,
        keys=keys,
        parsers=parsers,
        slow_reader_timeout_s=config.slow_reader_timeout_s,
    )
