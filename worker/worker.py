"""One worker process's life: load, bind, register, serve, drain, leave.

Draining begins with SIGTERM or a master's word: the registry says so, new legs are refused, running ones go on
for up to `drain_timeout_s`. A second signal leaves at once.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from importlib.metadata import version

from config.address import free_of_wildcard, join_host_port
from config.flags import FlagError
from protos.session_messages import LoadReport, Welcome
from registry.errors import NewerIncarnation
from registry.etcd.client import EtcdClient
from registry.instance import InstanceRecord
from registry.registration import Registration
from serving.http_server import HttpServer
from serving.stop_signal import StopSignal
from worker.config import WorkerConfig
from worker.engines.compute_engine import ComputeEngine
from worker.faults.messages import MessageFaults
from worker.faults.plan import NO_FAULTS, FaultPlan
from worker.http_app import create_app
from worker.legs.leg_life import Legs
from worker.metrics import render_metrics
from worker.rpc_server import RpcServer
from worker.session_service import SessionService

logger = logging.getLogger(__name__)

REGISTRY_TTL_S = 6
DRAIN_CHECK_S = 0.1
ENGINE_STOP_S = 10.0


class EngineDied(RuntimeError):
    """Nothing can be computed here any more."""


class Worker:
    """`engine` is not started yet; `run` starts and stops it."""

    def __init__(self, config: WorkerConfig, engine: ComputeEngine, faults: FaultPlan = NO_FAULTS) -> None:
        self._config = config
        self._engine = engine
        self._message_faults = None if faults.session is None else MessageFaults(faults.session)
        self._legs = Legs(engine)
        self._keys = config.cluster_keys()
        self._tls = config.master_tls()
        self._advertise_host = config.advertise_host or free_of_wildcard(config.host)
        self._is_draining = False
        self._registration: Registration | None = None
        self._incarnation = time.time_ns()
        self._instance = ""

    async def run(self, stop: StopSignal) -> None:
        """Serves until told to stop, and drained. Raises FlagError when it cannot begin, and EngineDied."""
        config = self._config
        sessions = SessionService(
            self._legs,
            welcome=self._welcome,
            load=self._load,
            drain=self._begin_drain,
            master_timeout_s=config.heartbeat_timeout_s,
            faults=self._message_faults,
        )
        rpc = RpcServer(
            sessions,
            self.not_ready_reason,
            keys=self._keys,
            credentials=None if self._tls is None else self._tls.grpc_credentials(),
        )
        http = HttpServer(
            create_app(not_ready_reason=self.not_ready_reason, metrics=lambda: render_metrics(self._engine)),
            config.host,
            config.port,
        )
        async with contextlib.AsyncExitStack() as stack:
            self._engine.start(self._legs)
            stack.push_async_callback(self._stop_engine)
            await _bind("disagg_pd_port", config.disagg_pd_port, rpc.start(config.host, config.disagg_pd_port))
            stack.push_async_callback(rpc.close, 0.5)
            await _bind("port", config.port, http.start())
            stack.push_async_callback(http.stop, 1.0)
            self._instance = config.instance_name or f"{socket.gethostname()}-{rpc.port}"
            if config.etcd_addr is not None:
                etcd = await stack.enter_async_context(EtcdClient(config.etcd_config()))
                await self._register(etcd, self._record(rpc.port, http.port))
                stack.push_async_callback(self._registration_closed)
            if self._tls is not None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._tls.reload)
            logger.info("%s serves as %s", self._instance, config.effective_role.value)
            await self._stopped(stop)
            self._begin_drain()
            await self._finish_work(stop)

    async def _stopped(self, stop: StopSignal) -> None:
        """Returns when told to stop. Raises EngineDied: then masters go on elsewhere, and a supervisor begins anew."""
        stopping = asyncio.create_task(stop.wait())
        dying = asyncio.create_task(asyncio.to_thread(self._engine.join))
        await asyncio.wait({stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if dying.done():
            raise EngineDied("the engine ended by an error of its own; the log has it")

    def not_ready_reason(self) -> str | None:
        """None when a leg sent here would be served now."""
        if self._is_draining:
            return "draining"
        if self._is_stalled:
            return f"the engine has made no progress for over {self._config.stall_timeout_s:g} s"
        return None

    @property
    def _is_stalled(self) -> bool:
        return time.monotonic() - self._engine.last_progress_s > self._config.stall_timeout_s

    async def _register(self, etcd: EtcdClient, record: InstanceRecord) -> None:
        """Returns once the registry has the record. Raises FlagError if etcd can't be reached or refuses it."""
        self._registration = Registration(
            etcd, self._config.cluster, record, ttl_s=REGISTRY_TTL_S, on_incarnation=self._set_incarnation
        )
        self._registration.start()
        try:
            await self._registration.registered(self._config.etcd_wait_s)
        except TimeoutError as error:
            await self._registration_closed()
            problem = f"{self._config.etcd_addr}: could not register within {self._config.etcd_wait_s:g} s"
            raise FlagError("etcd_addr", problem) from error
        except NewerIncarnation as error:
            await self._registration_closed()
            raise FlagError("instance_name", f"{record.instance}: {error}") from error

    async def _registration_closed(self) -> None:
        if self._registration is not None:
            await self._registration.close()

    def _set_incarnation(self, incarnation: int) -> None:
        self._incarnation = incarnation

    def _begin_drain(self) -> None:
        if self._is_draining:
            return
        logger.info("draining: %d legs are left", self._legs.num_unreleased)
        self._is_draining = True
        self._legs.drain()
        if self._registration is not None:
            record = self._registration.record
            assert isinstance(record, InstanceRecord)
            self._registration.update(dataclasses.replace(record, draining=True))

    async def _finish_work(self, stop: StopSignal) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_timeout_s):
                urged = asyncio.create_task(stop.wait_urgent())
                try:
                    while self._legs.num_unreleased > 0 and not urged.done():
                        await asyncio.wait([urged], timeout=DRAIN_CHECK_S)
                finally:
                    urged.cancel()
        logger.info("leaving with %d legs unfinished", self._legs.num_unreleased)

    async def _stop_engine(self) -> None:
        if not await asyncio.to_thread(self._engine.stop, ENGINE_STOP_S):
            logger.error("the engine did not stop within %g s", ENGINE_STOP_S)

    def _load(self) -> LoadReport:
        return dataclasses.replace(
            self._engine.load,
            role=self._config.effective_role,
            is_draining=self._is_draining,
            is_stalled=self._is_stalled,
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
            vocab_size=limits.vocab_size,
            version=version("pdserve"),
            transfer_address=identity.transfer_address,
        )

    def _record(self, rpc_port: int, http_port: int) -> InstanceRecord:
        welcome = self._welcome()
        return InstanceRecord(
            instance=welcome.instance,
            role=welcome.role,
            rpc_address=join_host_port(self._advertise_host, rpc_port),
            transfer_address=welcome.transfer_address,
            http_address=join_host_port(self._advertise_host, http_port),
            model=welcome.model,
            incarnation=welcome.incarnation,
            layout_fingerprint=welcome.layout_fingerprint.hex(),
            block_size=welcome.block_size,
            num_blocks=welcome.num_blocks,
            max_context=welcome.max_context,
            max_num_seqs=welcome.max_num_seqs,
            vocab_size=welcome.vocab_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=welcome.version,
        )


async def _bind(flag_name: str, port: int, start: Coroutine[None, None, None]) -> None:
    """Raises FlagError naming the flag when the port can't be had."""
    try:
        await start
    except OSError as error:
        raise FlagError(flag_name, f"{port}: {error.strerror or error}") from error
