"""This master's session with one worker: kept open for as long as the worker is known.

    connecting --welcome--> open --broken, silent, stalled--> connecting, with growing pauses

While it is open, attempts run on it as legs. When it breaks, each of them is told that the worker is lost.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
import grpc.aio

from master.worker_view import WorkerView
from protos import session_pb2 as wire
from protos.codec import decode_to_master, encode_to_worker
from protos.messages import (
    AttemptUpdate,
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    ErrorCode,
    Failure,
    Heartbeat,
    Hello,
    LoadReport,
    Role,
    Stage,
    Start,
    Step,
    ToMaster,
    ToWorker,
    Welcome,
)
from protos.session_pb2_grpc import WorkerStub

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
HEARTBEAT_INTERVAL_S = 1.0
MAX_PAUSE_S = 2.0
MESSAGE_LIMIT_BYTES = 64 << 20

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)

T = TypeVar("T")

OnUpdate = Callable[["Leg", AttemptUpdate], None]


class WorkerLost(Exception):
    """The session ended; the message says how."""


@dataclass(eq=False)
class Leg:
    """An attempt's part on one worker, from `begin` to its last update or `end`."""

    session: "WorkerSession"
    start: Start
    on_update: OnUpdate
    uncached_tokens: int  # of the prompt, as far as the prefix index knows
    unfinished: set[int]  # sequences
    has_started: bool = False
    has_prefilled: bool = False

    @property
    def worker(self) -> str:
        return self.session.name


class WorkerSession:
    """`run` it in a task; everything else is called from the same loop and returns at once."""

    def __init__(
        self, master_id: str, name: str, address: str, *, silence_s: float, on_change: Callable[[], None]
    ) -> None:
        """`silence_s`: a worker silent for so long is lost. `on_change`: it became usable, or ceased to be."""
        self.name = name
        self.address = address
        self.welcome: Welcome | None = None
        self.load = LoadReport(Role.DEFAULT)
        self._master_id = master_id
        self._silence_s = silence_s
        self._on_change = on_change
        self._is_draining = False
        self._legs: dict[int, Leg] = {}
        self._cached: set[bytes] = set()
        self._outgoing: deque[ToWorker] = deque()
        self._has_outgoing = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        """Whether new attempts may be sent."""
        return self.welcome is not None and not self.load.is_draining and not self._is_draining

    @property
    def num_legs(self) -> int:
        return len(self._legs)

    @property
    def num_cached_blocks(self) -> int:
        return len(self._cached)

    def view(self) -> WorkerView:
        """For the router; only while the session is open."""
        assert self.welcome is not None, self.name
        legs = self._legs.values()
        prefilling = [leg for leg in legs if leg.start.stage is not Stage.DECODE and not leg.has_prefilled]
        unseen = [leg for leg in legs if not leg.has_started]
        unseen_blocks = sum(-(-len(leg.start.prompt_ids) // self.welcome.block_size) for leg in unseen)
        return WorkerView(
            name=self.name,
            role=self.load.role,
            model=self.welcome.model,
            layout_fingerprint=self.welcome.layout_fingerprint,
            block_size=self.welcome.block_size,
            queued_prefill_tokens=max(self.load.queued_prefill_tokens, sum(leg.uncached_tokens for leg in prefilling)),
            running_sequences=max(self.load.running_sequences, len(self._legs)),
            available_blocks=self.load.available_blocks - unseen_blocks,
            num_blocks=self.welcome.num_blocks,
            max_context=self.welcome.max_context,
            prefill_tokens_per_s=self.load.prefill_tokens_per_s,
            cached_blocks=self._cached,
        )

    def begin(self, start: Start, on_update: OnUpdate, uncached_tokens: int) -> Leg:
        """Send an attempt. `on_update` gets every update, at last a failure if the worker is lost."""
        leg = Leg(self, start, on_update, uncached_tokens, set(start.sequences))
        self._legs[start.attempt] = leg
        self._send(start)
        return leg

    def end(self, leg: Leg) -> None:
        """Nobody wants the leg any more: cancel it unless it is over. Harmless twice."""
        if self._legs.pop(leg.start.attempt, None) is not None:
            self._send(Cancel(leg.start.attempt))

    def cancel_sequence(self, leg: Leg, sequence: int) -> None:
        self._send(Cancel(leg.start.attempt, sequence))

    def decode_here(self, leg: Leg) -> None:
        self._send(DecodeHere(leg.start.attempt))

    def drain(self) -> None:
        self._send(Drain())

    def set_draining(self, is_draining: bool) -> None:
        """As the registry says; the worker's own reports say so too, a little later."""
        if is_draining != self._is_draining:
            self._is_draining = is_draining
            self._on_change()

    async def run(self) -> None:
        """Connects again and again until cancelled."""
        pause_s = 0.1
        try:
            while True:
                try:
                    await self._connect()
                except (WorkerLost, grpc.aio.AioRpcError, TimeoutError, ValueError) as error:
                    was_open = self.welcome is not None
                    self._lose(_describe(error))
                    logger.log(
                        logging.WARNING if was_open else logging.DEBUG, "worker %s: %s", self.name, _describe(error)
                    )
                    pause_s = 0.1 if was_open else min(pause_s * 2, MAX_PAUSE_S)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        finally:
            self._lose("no longer known")

    async def _connect(self) -> None:
        """Runs one connection; ends only with an error."""
        async with grpc.aio.insecure_channel(self.address, options=_OPTIONS) as channel:
            call = WorkerStub(channel).Session()
            try:
                await _within(CONNECT_TIMEOUT_S, call.write(encode_to_worker(Hello(self._master_id))))
                welcome = await self._read(call, CONNECT_TIMEOUT_S)
                if not isinstance(welcome, Welcome):
                    raise ValueError(f"the first message must be welcome, not {type(welcome).__name__}")
                self._open(welcome)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._receive(call))
                    tasks.create_task(self._transmit(call))
            except* (WorkerLost, grpc.aio.AioRpcError, TimeoutError, ValueError) as group:
                raise _first(group) from None
            finally:
                call.cancel()

    async def _receive(self, call: "grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]") -> None:
        while True:
            match await self._read(call, self._silence_s):
                case Step(updates):
                    for update in updates:
                        self._on_update(update)
                case LoadReport() as load:
                    self._on_load(load)
                case CacheEvents() as events:
                    self._on_cache(events)
                case Welcome():
                    raise ValueError("welcome came twice")

    async def _transmit(self, call: "grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]") -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await _within(HEARTBEAT_INTERVAL_S, self._has_outgoing.wait())
            self._has_outgoing.clear()
            if not self._outgoing:
                await _within(self._silence_s, call.write(encode_to_worker(Heartbeat())))
            while self._outgoing:
                await _within(self._silence_s, call.write(encode_to_worker(self._outgoing.popleft())))

    async def _read(
        self, call: "grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]", timeout_s: float
    ) -> ToMaster:
        try:
            message = await _within(timeout_s, call.read())
        except TimeoutError as error:
            raise WorkerLost(f"silent for {timeout_s:g} s") from error
        if not isinstance(message, wire.ToMaster):
            raise WorkerLost(f"closed the session: {await call.details() or 'no reason given'}")
        return decode_to_master(message)

    def _open(self, welcome: Welcome) -> None:
        logger.info("worker %s: connected, %s, incarnation %d", self.name, welcome.role.value, welcome.incarnation)
        self.load = LoadReport(welcome.role, available_blocks=welcome.num_blocks)
        self._cached = set()
        self.welcome = welcome
        self._on_change()

    def _lose(self, reason: str) -> None:
        self._outgoing.clear()
        if self.welcome is None:
            return
        self.welcome = None
        self._fail_legs(f"worker {self.name} was lost: {reason}")
        self._on_change()

    def _fail_legs(self, message: str) -> None:
        legs, self._legs = self._legs, {}
        for leg in legs.values():
            failure = Failure(ErrorCode.UNAVAILABLE, message)
            leg.on_update(leg, AttemptUpdate(leg.start.attempt, failure=failure))

    def _on_update(self, update: AttemptUpdate) -> None:
        leg = self._legs.get(update.attempt)
        if leg is None:
            return  # ended here while the update was on its way
        leg.has_started |= update.started is not None
        leg.has_prefilled |= update.prefilled is not None or update.transferred is not None
        leg.unfinished.difference_update(d.sequence for d in update.deltas if d.finish_reason is not None)
        if update.failure is not None or not leg.unfinished:
            del self._legs[update.attempt]
        leg.on_update(leg, update)

    def _on_load(self, load: LoadReport) -> None:
        has_changed = (load.is_draining, load.role) != (self.load.is_draining, self.load.role)
        self.load = load
        if load.is_stalled:
            raise WorkerLost("its engine makes no progress")
        if has_changed:
            self._on_change()

    def _on_cache(self, events: CacheEvents) -> None:
        if events.is_snapshot:
            self._cached = set(events.stored)
        else:
            self._cached.update(events.stored)
            self._cached.difference_update(events.removed)

    def _send(self, message: ToWorker) -> None:
        if self.welcome is not None:
            self._outgoing.append(message)
            self._has_outgoing.set()


async def _within(timeout_s: float, awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(timeout_s):
        return await awaitable


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _describe(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
