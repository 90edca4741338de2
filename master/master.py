"""One master process: how its parts are put together, and the ports behind which they are asked."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from config.address import free_of_wildcard, join_host_port
from config.flags import FlagError
from master.config import MasterConfig
from master.dispatch.dispatcher import Dispatcher
from master.dispatch.parts import dispatch_parts
from master.edge.app import create_app
from master.edge.grpc.server import client_server
from master.edge.http.config import HttpConfig
from master.grammar.check import GrammarCheck
from master.master_service import MasterService
from master.model_info import model_context
from master.parsing.formats import ParserChoice, choose_parsers
from master.routing.policies import POLICIES
from master.text.chat_template import ChatTemplate
from master.text.text_pool import TextPool
from master.text.tokenizer import load_tokenizer
from master.text.user_markers import UserMarkers
from master.workers.greeting import MasterIdentity
from master.workers.metrics import WorkersCollector
from master.workers.session_state import Patience
from master.workers.workers import Workers
from registry.embedded.server import EmbeddedEtcd
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import MasterRecord, workers_prefix
from registry.registration import Registration
from registry.watcher import PrefixWatcher
from serving.http_server import HttpServer
from serving.process_life import bind

logger = logging.getLogger(__name__)

REGISTRY_TTL_S = 6
ROUTE_WAIT_S = 5.0  # for workers that are known when a master starts


class Master:
    """A `ServingProcess`."""

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
        self._advertise_host = config.advertise_host or free_of_wildcard(config.host)
        self._changed = asyncio.Event()
        self._keys = config.api_keys()
        self._tls = config.client_tls()
        self._workers = Workers(
            MasterIdentity(self._id, version("pdserve"), access=config.worker_access()),
            patience=Patience(config.heartbeat_timeout_s, config.connect_timeout_s),
            on_change=self._changed.set,
        )
        metrics = CollectorRegistry()
        parts = dispatch_parts(
            self._workers,
            tokenizer.vocab_size,
            config,
            policy=POLICIES[config.routing_policy],
            registry=metrics,
            on_change=self._changed.set,
        )
        self._dispatcher = Dispatcher(parts, tokenizer)
        self._grammar_check = GrammarCheck()
        self._text_pool = TextPool()
        self._service = MasterService(
            tokenizer,
            template,
            self._workers,
            self._dispatcher,
            self._grammar_check,
            self._text_pool,
            names=config.served_model_name or (folder.resolve().name,),
            max_context=max_context,
            request_timeout_s=config.request_timeout_s,
            user_markers=None if config.parse_special_in_user_text else UserMarkers(tokenizer.marker_ids),
            isolates_caches=config.isolate_prefix_caches,
        )
        metrics.register(WorkersCollector(lambda: self._workers.sessions))
        http_config = HttpConfig(
            max_body_bytes=config.max_body_bytes,
            slow_reader_timeout_s=config.slow_reader_timeout_s,
            cors_origins=config.cors_origins,
            parsers=self._parsers,
            max_stored_responses=config.max_stored_responses,
            keep_responses_s=config.keep_responses_s,
            shows_tokenizer=config.enable_tokenizer_info,
        )
        app = create_app(self._service, http_config, metrics, keys=self._keys)
        self._http = HttpServer(
            app,
            config.host,
            config.http_server_port,
            uds=config.uds,
            tls=None if self._tls is None else self._tls.context,
            root_path=config.root_path,
            keep_alive_s=config.keep_alive_s,
        )
        self._rpc = client_server(
            self._service,
            config.host,
            config.rpc_server_port,
            credentials=None if self._tls is None else self._tls.grpc_credentials(),
            keys=self._keys,
            parsers=self._parsers,
            slow_reader_timeout_s=config.slow_reader_timeout_s,
        )

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """A balancer sends requests as soon as a port is open, so the ports open when there is a route."""
        config = self._config
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_secrets_again)
        await config.check_advertised(self._advertise_host)
        stack.push_async_callback(self._workers.close)
        stack.push_async_callback(self._grammar_check.close)
        stack.callback(self._text_pool.close)
        await self._bind_http(self._http.bind())
        stack.push_async_callback(self._http.stop, 1.0)
        await bind("rpc_server_port", config.rpc_server_port, self._rpc.bind())
        stack.push_async_callback(self._rpc.close, 1.0)
        for address in config.workers:
            self._workers.add_static(address)
        etcd = None
        if config.etcd_addr is not None or not config.workers:
            etcd = await self._find_workers(stack)
        readiness = asyncio.create_task(self._log_readiness(), name="readiness")
        stack.callback(readiness.cancel)
        await self._first_route()
        await self._bind_http(self._http.start())
        await self._rpc.start()
        if etcd is not None:
            await self._register(etcd, stack)
        logger.info("serving %s on %s", self._service.models()[0].id, self._http.url)

    async def failed(self) -> None:
        await asyncio.Event().wait()  # a master has nothing without which it could not go on

    def leave(self) -> None:
        logger.info("not ready any more: %d requests are left", self._dispatcher.num_in_flight)
        self._service.is_leaving = True
        self._http.leave()

    async def drained(self) -> None:
        await asyncio.gather(self._http.stop(None), self._rpc.close(self._config.drain_timeout_s))

    async def _bind_http(self, start: Awaitable[None]) -> None:
        if self._config.uds is not None:
            await bind("uds", self._config.uds, start)
        else:
            await bind("http_server_port", self._config.http_server_port, start)

    async def _first_route(self) -> None:
        """Returns as soon as a request would succeed, or nobody is known that could serve it; or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROUTE_WAIT_S):
                while self._workers.sessions and self._service.not_ready_reason() is not None:
                    await self._workers.changed()

    async def _find_workers(self, stack: contextlib.AsyncExitStack) -> EtcdClient:
        """Follows the registry. Raises FlagError if it can't be read in time."""
        config = self._config
        if config.etcd_addr is not None:
            etcd_config = config.etcd_config()
        else:
            embedded = EmbeddedEtcd(config.host, config.builtin_etcd_port)
            await bind("builtin_etcd_port", config.builtin_etcd_port, embedded.start())
            stack.push_async_callback(embedded.close)
            etcd_config = EtcdConfig(endpoints=embedded.address)
            logger.info("the built-in registry serves on %s", embedded.address)
        client = await stack.enter_async_context(EtcdClient(etcd_config))
        watcher = await stack.enter_async_context(PrefixWatcher(client, workers_prefix(config.cluster)))
        try:
            await watcher.listed(config.etcd_wait_s)
        except TimeoutError as error:
            problem = f"{etcd_config.endpoints}: could not read it within {config.etcd_wait_s:g} s"
            raise FlagError("etcd_addr", problem) from error
        following = asyncio.create_task(self._workers.follow(watcher), name="worker registry")
        stack.callback(following.cancel)
        await asyncio.sleep(0)  # it takes what was listed before it waits
        return client

    async def _register(self, etcd: EtcdClient, stack: contextlib.AsyncExitStack) -> None:
        """Be found, as soon as the registry takes it."""
        config = self._config
        host = self._advertise_host
        record = MasterRecord(
            id=self._id,
            http_address=self._http.address(host),
            rpc_address=join_host_port(host, self._rpc.address.port),
            incarnation=time.time_ns(),
        )
        registration = Registration(etcd, config.cluster, record, ttl_s=REGISTRY_TTL_S)
        registration.start()
        stack.push_async_callback(registration.close)

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


def _parsers(config: MasterConfig, template: ChatTemplate) -> ParserChoice:
    """Raises FlagError for a parser that there is not."""
    try:
        return choose_parsers(config.tool_call_parser, config.reasoning_parser, template.source)
    except ValueError as error:
        raise FlagError(None, str(error)) from error
