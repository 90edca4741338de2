"""One master process: how its parts are put together, and their life."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Info, ProcessCollector

from config.address import free_of_wildcard
from config.flags import FlagError
from master.config import MasterConfig
from master.dispatch.dispatcher import Dispatcher
from master.dispatch.parts import dispatch_parts
from master.grammar.check import GrammarCheck
from master.history.history import History
from master.history.masters import Masters
from master.history.samples import Samples
from master.master_service import MasterService
from master.model_info import load_model_info
from master.ports import MasterPorts
from master.routing.policies import POLICIES
from master.routing.prefix_index import PrefixIndex
from master.text.text_pool import TextPool
from master.text.user_markers import UserMarkers
from master.workers.greeting import MasterIdentity
from master.workers.metrics import WorkersCollector
from master.workers.session_state import Patience
from master.workers.workers import Workers
from registry.embedded.server import EmbeddedEtcd
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import MasterRecord, masters_prefix, workers_prefix
from registry.registration import Registration
from registry.watcher import PrefixWatcher
from serving.heap import settle_heap
from serving.process_life import bind

logger = logging.getLogger(__name__)

REGISTRY_TTL_S = 6
ROUTE_WAIT_S = 5.0  # for workers that are known when a master starts


class Master:
    """A `ServingProcess`."""

    def __init__(self, config: MasterConfig) -> None:
        """Raises FlagError for a model, key or certificate that cannot be used."""
        self._config = config
        self._id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._advertise_host = config.advertise_host or free_of_wildcard(config.host)
        self._changed = asyncio.Event()
        model = load_model_info(config)
        metrics = CollectorRegistry()
        ProcessCollector(registry=metrics)
        about = Info("pdserve_build", "What this master serves", registry=metrics)
        about.info({"version": version("pdserve"), "model": model.names[0]})
        self._workers = Workers(
            MasterIdentity(self._id, version("pdserve"), access=config.worker_access()),
            patience=Patience(config.heartbeat_timeout_s, config.connect_timeout_s),
            on_change=self._changed.set,
            prefixes=PrefixIndex(config.max_indexed_blocks),
        )
        metrics.register(WorkersCollector(lambda: self._workers.sessions, self._workers.prefixes))
        parts = dispatch_parts(
            self._workers,
            model.tokenizer.vocab_size,
            config,
            policy=POLICIES[config.routing_policy],
            registry=metrics,
            on_change=self._changed.set,
        )
        self._history = History(parts.log, Samples(parts.log, metrics, self._workers.received_bytes), Masters(self._id))
        self._grammar_check = GrammarCheck()
        self._text_pool = TextPool()
        self._service = MasterService(
            model,
            self._workers,
            Dispatcher(parts, model.tokenizer),
            self._grammar_check,
            self._text_pool,
            self._history,
            request_timeout_s=config.request_timeout_s,
            user_markers=None if config.parse_special_in_user_text else UserMarkers(model.tokenizer.marker_ids),
            isolates_caches=config.isolate_prefix_caches,
        )
        self._ports = MasterPorts(config, self._service, model.parsers, metrics)

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """A balancer sends requests as soon as a port is open, so the ports open when there is a route."""
        config = self._config
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._ports.read_secrets_again)
        await config.check_advertised(self._advertise_host)
        stack.push_async_callback(self._workers.close)
        stack.push_async_callback(self._grammar_check.close)
        stack.callback(self._text_pool.close)
        await self._ports.bind(stack)
        for address in config.workers:
            self._workers.add_static(address)
        etcd = None
        if config.etcd_addr is not None or not config.workers:
            etcd = await self._find_workers(stack)
        for task in (
            asyncio.create_task(self._log_readiness(), name="readiness"),
            asyncio.create_task(self._history.samples.run(), name="samples"),
        ):
            stack.callback(task.cancel)
        await self._first_route()
        await self._ports.start()
        if etcd is not None:
            await self._register(etcd, stack)
        settle_heap()
        self._log_start()

    def _log_start(self) -> None:
        """Who this is, where it is reached, what it serves: three lines."""
        config, card = self._config, self._service.models()[0]
        registry = config.etcd_addr or ("built in" if not config.workers else "none, workers are listed")
        logger.info("pdserve-master %s, id %s, pid %d", version("pdserve"), self._id, os.getpid())
        rpc = self._ports.rpc_address(self._advertise_host)
        guards = f"keys {'on' if self._ports.has_keys else 'off'}, TLS {'on' if self._ports.has_tls else 'off'}"
        logger.info("HTTP %s, gRPC %s, %s, registry %s", self._ports.url, rpc, guards, registry)
        logger.info("serving %s, context %d, %d workers", card.id, card.max_context, len(self._workers.sessions))

    async def failed(self) -> None:
        await asyncio.Event().wait()  # a master has nothing without which it could not go on

    def leave(self) -> None:
        logger.info("not ready any more: %d requests are left", self._service.num_in_flight)
        self._service.is_leaving = True
        self._ports.leave()

    async def drained(self) -> None:
        await self._ports.drained()

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
        masters = await stack.enter_async_context(PrefixWatcher(client, masters_prefix(config.cluster)))
        listing = asyncio.create_task(self._history.masters.follow(masters), name="master registry")
        stack.callback(listing.cancel)
        await asyncio.sleep(0)  # it takes what was listed before it waits
        return client

    async def _register(self, etcd: EtcdClient, stack: contextlib.AsyncExitStack) -> None:
        """Be found, as soon as the registry takes it."""
        config = self._config
        host = self._advertise_host
        record = MasterRecord(
            id=self._id,
            http_address=self._ports.http_address(host),
            rpc_address=self._ports.rpc_address(host),
            incarnation=time.time_ns(),
        )
        registration = Registration(etcd, config.cluster, record, ttl_s=REGISTRY_TTL_S)
        registration.start()
        stack.push_async_callback(registration.close)

    async def _log_readiness(self) -> None:
        previous: str | None = "starting"
        while True:
            reason = self._service.not_ready_reason()
            if reason != previous:
                logger.info("ready" if reason is None else f"not ready: {reason}")
                previous = reason
            await self._changed.wait()
            self._changed.clear()
