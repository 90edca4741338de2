"""One worker process: its engine, and the ports behind which that is found, asked and watched."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from importlib.metadata import version

from config.address import free_of_wildcard
from config.daemon_thread import in_daemon_thread
from kvcache.transfer.frames import PROTOCOL_VERSION
from protos.session_identity import PROTOCOL
from protos.session_messages import LoadReport, Welcome
from registry.etcd.client import EtcdClient
from serving.http_server import HttpServer
from serving.process_life import bind
from worker.config import WorkerConfig
from worker.engines.compute_engine import ComputeEngine
from worker.faults.messages import MessageFaults
from worker.faults.plan import NO_FAULTS, FaultPlan
from worker.http_app import create_app
from worker.legs.leg_life import Legs
from worker.metrics import worker_metrics
from worker.registration import WorkerRegistration, instance_record
from worker.rpc_server import session_server
from worker.session_service import SessionService

logger = logging.getLogger(__name__)

ENGINE_STOP_S = 3.0
MISSING_S = 30.0  # after so long without a master a person should know


class EngineDied(RuntimeError):
    """Nothing can be computed here any more."""


class Worker:
    """A `ServingProcess`; `engine` is not started yet."""

    def __init__(self, config: WorkerConfig, engine: ComputeEngine, faults: FaultPlan = NO_FAULTS) -> None:
        self._config = config
        self._engine = engine
        self._message_faults = None if faults.session is None else MessageFaults(faults.session)
        self._legs = Legs(engine, config.leg_limits)
        self._tls = config.master_tls()
        self._advertise_host = config.advertise_host or free_of_wildcard(config.host)
        self._is_draining = False
        self._registration: WorkerRegistration | None = None
        self._incarnation = time.time_ns()
        self._instance = ""
        keys = config.cluster_keys()
        self._sessions = SessionService(
            self._legs,
            welcome=self._welcome,
            load=self._load,
            drain=self.leave,
            master_timeout_s=config.master_stall_timeout_s,
            keys=keys,
            faults=self._message_faults,
        )
        self._rpc = session_server(
            self._sessions,
            self.not_ready_reason,
            config.host,
            config.disagg_pd_port,
            master_silence_s=config.heartbeat_timeout_s,
            keys=keys,
            credentials=None if self._tls is None else self._tls.grpc_credentials(),
        )
        app = create_app(not_ready_reason=self.not_ready_reason, metrics=worker_metrics(engine, self._legs))
        self._http = HttpServer(app, config.host, config.port)

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        config = self._config
        self._engine.start(self._legs)
        stack.push_async_callback(self._stop_engine)
        await bind("disagg_pd_port", config.disagg_pd_port, self._rpc.start())
        stack.push_async_callback(self._rpc.close, 0.5)
        await bind("port", config.port, self._http.start())
        stack.push_async_callback(self._http.stop, 1.0)
        self._instance = config.instance_name or f"{socket.gethostname()}-{self._rpc.address.port}"
        if self._tls is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._tls.reload)
        if config.etcd_addr is not None:
            await self._register(stack)
        self._log_start()
        missing = asyncio.create_task(self._miss_masters(), name="missing masters")
        stack.callback(missing.cancel)

    def _log_start(self) -> None:
        """Who this is, where it is reached, what it serves: three lines."""
        config, welcome = self._config, self._welcome()
        logger.info("pdserve-worker %s, %s, pid %d", welcome.version, self._instance, os.getpid())
        logger.info("sessions %s, HTTP %s, registry %s", self._rpc.address, self._http.url, config.etcd_addr or "none")
        blocks = f"{welcome.num_blocks} blocks of {welcome.block_size} tokens"
        logger.info("serving %s as %s, %s", welcome.model.identity, config.effective_role.value, blocks)

    async def failed(self) -> None:
        """Raises EngineDied: then masters go on elsewhere, and a supervisor begins anew."""
        await in_daemon_thread(self._engine.join, "end of the engine")
        raise EngineDied("the engine ended by an error of its own; the log has it")

    def leave(self) -> None:
        """The registry says so, and new legs are refused. Also a master's word; harmless twice."""
        if self._is_draining:
            return
        logger.info("draining: %d legs are left", self._legs.num_unreleased)
        self._is_draining = True
        self._legs.drain()
        if self._registration is not None:
            self._registration.drain()

    async def drained(self) -> None:
        loop, is_idle = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(is_idle.set)

        self._legs.when_idle(tell)
        try:
            await is_idle.wait()
        finally:
            logger.info("leaving with %d legs unfinished", self._legs.num_unreleased)

    def not_ready_reason(self) -> str | None:
        """None when a leg sent here would be served now."""
        if self._is_draining:
            return "draining"
        if self._legs.failing_reason is not None:
            return f"steps fail: {self._legs.failing_reason}"
        if self._is_stalled:
            return f"the engine has made no progress for over {self._config.stall_timeout_s:g} s"
        if self._registration is not None and (problem := self._registration.problem) is not None:
            return problem
        if (refusal := self._sessions.standings.refusal) is not None:
            return refusal
        if self._sessions.num_sessions == 0:
            return "no master is connected"
        return None

    @property
    def _is_stalled(self) -> bool:
        return time.monotonic() - self._engine.last_progress_s > self._config.stall_timeout_s

    async def _register(self, stack: contextlib.AsyncExitStack) -> None:
        """Raises FlagError if etcd can't be reached, or refuses the record."""
        config = self._config
        etcd = await stack.enter_async_context(EtcdClient(config.etcd_config()))
        transfer_address = self._engine.identity.transfer_address
        ports = self._rpc.address.port, self._http.port
        record = instance_record(self._welcome(), transfer_address, self._advertise_host, *ports)
        self._registration = WorkerRegistration(etcd, config.cluster, record, self._set_incarnation)
        stack.push_async_callback(self._registration.close)
        await self._registration.start(config.etcd_wait_s, lambda: self._sessions.num_sessions > 0)

    async def _miss_masters(self) -> None:
        await asyncio.sleep(MISSING_S)
        if self._sessions.num_sessions == 0:
            where = f"--etcd_addr={self._config.etcd_addr} and --cluster={self._config.cluster}"
            hint = where if self._config.etcd_addr is not None else f"port {self._rpc.address.port} in --workers"
            logger.warning("%s: no master has connected in %g s; masters need %s", self._instance, MISSING_S, hint)

    async def _stop_engine(self) -> None:
        if not await in_daemon_thread(lambda: self._engine.stop(ENGINE_STOP_S), "stop of the engine"):
            logger.error("the engine did not end within %g s; leaving without it", ENGINE_STOP_S)

    def _set_incarnation(self, incarnation: int) -> None:
        self._incarnation = incarnation

    def _load(self) -> LoadReport:
        return dataclasses.replace(
            self._engine.load,
            role=self._config.effective_role,
            is_draining=self._is_draining,
            is_stalled=self._is_stalled,
            failing_reason=self._legs.failing_reason,
        )

    def _welcome(self) -> Welcome:
        identity, limits = self._engine.identity, self._engine.limits
        return Welcome(
            instance=self._instance,
            role=self._config.effective_role,
            model=identity.model,
            incarnation=self._incarnation,
            layout_fingerprint=identity.layout_fingerprint,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            max_context=limits.max_context,
            max_num_seqs=limits.max_num_seqs,
            version=version("pdserve"),
            protocol=PROTOCOL,
            transfer_protocol=PROTOCOL_VERSION,
        )
