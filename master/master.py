"""One master process's life: read the tokenizer, bind, register, find workers, serve, drain, leave."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable

from prometheus_client import CollectorRegistry

from config.address import free_of_wildcard, join_host_port
from config.flags import FlagError
from master.config import MasterConfig
from master.dispatch.dispatcher import Dispatcher
from master.edge.app import create_app
from master.edge.grpc.server import GrpcServer
from master.edge.http.config import HttpConfig
from master.grammar.check import GrammarCheck
from master.master_service import MasterService
from master.model_info import model_context
from master.parsing.formats import ParserChoice, choose_parsers
from master.routing.policies import POLICIES
from master.text.chat_template import ChatTemplate
from master.text.tokenizer import load_tokenizer
from master.workers.workers import Workers
from registry.embedded.server import EmbeddedEtcd
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import MasterRecord, workers_prefix
from registry.registration import Registration
from registry.watcher import PrefixWatcher
from serving.http_server import HttpServer
from serving.stop_signal import StopSignal

logger = logging.getLogger(__name__)

REGISTRY_TTL_S = 6
DRAIN_CHECK_S = 0.1


class Master:
    def __init__(self, config: MasterConfig) -> None:
        """Raises FlagError for a tokenizer, key or certificate that cannot be used."""
        self._config = config
        if config.tokenizer_path is None:
            raise FlagError("tokenizer_path", "unset: name the folder of the served model")
        folder = config.tokenizer_path
        try:
            tokenizer = load_tokenizer(folder)
            template = ChatTemplate.load(folder)
            max_context = min(config.max_context or model_context(folder), model_context(folder))
        except ValueError as error:
            raise FlagError("tokenizer_path", str(error)) from error
        self._parsers = _parsers(config, template)
        self._id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._changed = asyncio.Event()
        self._keys = config.api_keys()
        self._tls = config.client_tls()
        self._workers = Workers(
            self._id,
            silence_s=config.heartbeat_timeout_s,
            on_change=self._changed.set,
            access=config.worker_access(),
        )
        self._dispatcher = Dispatcher(
            self._workers,
            tokenizer,
            max_requests=config.max_requests,
            policy=POLICIES[config.routing_policy],
        )
        self._grammar_check = GrammarCheck()
        self._service = MasterService(
            tokenizer,
            template,
            self._workers,
            self._dispatcher,
            self._grammar_check,
            names=config.served_model_name or (folder.resolve().name,),
            max_context=max_context,
            request_timeout_s=config.request_timeout_s,
        )

    async def run(self, stop: StopSignal) -> None:
        """Serves until told to stop, and drained. Raises FlagError when it cannot begin."""
        config = self._config
        metrics = CollectorRegistry()
        http_config = HttpConfig(
            max_body_bytes=config.max_body_bytes,
            slow_reader_timeout_s=config.slow_reader_timeout_s,
            cors_origins=config.cors_origins,
            parsers=self._parsers,
        )
        app = create_app(self._service, http_config, metrics, keys=self._keys)
        http = HttpServer(
            app, config.host, config.http_server_port, tls=None if self._tls is None else self._tls.context
        )
        credentials = None if self._tls is None else self._tls.grpc_credentials()
        rpc = GrpcServer(
            self._service,
            config.host,
            config.rpc_server_port,
            credentials=credentials,
            keys=self._keys,
            parsers=self._parsers,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_secrets_again)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._workers.close)
            stack.push_async_callback(self._grammar_check.close)
            await _bind("http_server_port", config.http_server_port, http.start())
            stack.push_async_callback(http.stop, 1.0)
            await _bind("rpc_server_port", config.rpc_server_port, rpc.start())
            stack.push_async_callback(rpc.close, 1.0)
            for address in config.workers:
                self._workers.add_static(address)
            if config.etcd_addr is not None or not config.workers:
                await self._join_registry(stack, http.port, rpc.address.port)
            logger.info("serving %s on %s", self._service.models()[0].id, http.url)
            readiness = asyncio.create_task(self._log_readiness(), name="readiness")
            stack.callback(readiness.cancel)
            await stop.wait()
            self._service.is_draining = True
            await self._finish_requests(stop)

    async def _join_registry(self, stack: contextlib.AsyncExitStack, http_port: int, rpc_port: int) -> None:
        """Find workers in the registry, and be found. Raises FlagError if it can't be reached."""
        config = self._config
        if config.etcd_addr is not None:
            etcd_config = config.etcd_config()
        else:
            etcd = EmbeddedEtcd(config.host, config.builtin_etcd_port)
            await _bind("builtin_etcd_port", config.builtin_etcd_port, etcd.start())
            stack.push_async_callback(etcd.close)
            etcd_config = EtcdConfig(endpoints=etcd.address)
            logger.info("the built-in registry serves on %s", etcd.address)
        client = await stack.enter_async_context(EtcdClient(etcd_config))
        host = config.advertise_host or free_of_wildcard(config.host)
        record = MasterRecord(
            id=self._id,
            http_address=join_host_port(host, http_port),
            rpc_address=join_host_port(host, rpc_port),
            incarnation=time.time_ns(),
        )
        registration = Registration(client, config.cluster, record, ttl_s=REGISTRY_TTL_S)
        registration.start()
        stack.push_async_callback(registration.close)
        try:
            await registration.registered(config.etcd_wait_s)
        except TimeoutError as error:
            problem = f"{etcd_config.endpoints}: could not register within {config.etcd_wait_s:g} s"
            raise FlagError("etcd_addr", problem) from error
        watcher = await stack.enter_async_context(PrefixWatcher(client, workers_prefix(config.cluster)))
        following = asyncio.create_task(self._workers.follow(watcher), name="worker registry")
        stack.callback(following.cancel)

    def _read_secrets_again(self) -> None:
        if self._keys is not None:
            self._keys.reload()
        if self._tls is not None:
            self._tls.reload()

    async def _log_readiness(self) -> None:
        previous: str | None = "starting"
        while True:
            reason = self._service.not_ready_reason()
            if reason != previous:
                logger.info("ready" if reason is None else f"not ready: {reason}")
                previous = reason
            await self._changed.wait()
            self._changed.clear()

    async def _finish_requests(self, stop: StopSignal) -> None:
        logger.info("draining: %d requests are left", self._dispatcher.num_in_flight)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_timeout_s):
                urged = asyncio.create_task(stop.wait_urgent())
                try:
                    while self._dispatcher.num_in_flight > 0 and not urged.done():
                        await asyncio.wait([urged], timeout=DRAIN_CHECK_S)
                finally:
                    urged.cancel()


def _parsers(config: MasterConfig, template: ChatTemplate) -> ParserChoice:
    """Raises FlagError for a parser that there is not."""
    try:
        return choose_parsers(config.tool_call_parser, config.reasoning_parser, template.source)
    except ValueError as error:
        raise FlagError(None, str(error)) from error


async def _bind(flag_name: str, port: int, start: Awaitable[None]) -> None:
    """Raises FlagError naming the flag when the port can't be had."""
    try:
        await start
    except OSError as error:
        raise FlagError(flag_name, f"{port}: {error.strerror or error}") from error
