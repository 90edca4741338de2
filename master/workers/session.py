"""This master's session with one worker: kept open for as long as the worker is known.

    connecting --welcome, first load--> open --broken, silent, stalled--> connecting, with growing pauses

While it is open, attempts run on it as legs. When it breaks, each of them is told that the worker is lost.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum

from master.routing.views import WorkerView
from master.workers.access import PLAIN, WorkerAccess
from master.workers.session_call import (
    CALL_ENDS,
    SessionCall,
    WorkerLost,
    WorkerSilent,
    describe,
    refusal_of,
    session_call,
)
from protos.session_messages import (
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    ErrorCode,
    Failure,
    Heartbeat,
    Hello,
    LegUpdate,
    LoadReport,
    Role,
    Stage,
    Start,
    Step,
    ToWorker,
    Welcome,
)

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
HEARTBEAT_INTERVAL_S = 1.0
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0

OnUpdate = Callable[["Leg", LegUpdate], None]


class Loss(Enum):
    """How a session ended under its legs."""

    CLOSED = "closed"  # the worker's process died, closed it, or says that its engine stands still
    SILENT = "silent"  # the worker hangs, or was cut off
    DRAINED = "drained"  # the worker was leaving


@dataclass(eq=False)
class Leg:
    """An attempt's part on one worker, from `begin` to its last update or `end`."""

    session: "WorkerSession"
    start: Start
    on_update: OnUpdate
    uncached_tokens: int  # of the prompt, as far as the prefix index knows
    unfinished: set[int]  # sequences
    has_started: bool = False
    has_prefilled: bool = False  # or received the KV
    loss: Loss | None = None  # the session broke; what the worker did last is not known
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # the worker holds nothing for it any more, or is lost

    @property
    def number(self) -> int:
        return self.start.leg

    @property
    def worker(self) -> str:
        return self.session.name

    @property
    def is_lost(self) -> bool:
        return self.loss is not None


class WorkerSession:
    """`run` it in a task; everything else is called from the same loop and returns at once."""

    def __init__(
        self,
        master_id: str,
        name: str,
        address: str,
        *,
        silence_s: float,
        on_change: Callable[[], None],
        is_name_known: bool = True,
        access: WorkerAccess = PLAIN,
    ) -> None:
        """`silence_s`: a worker silent for so long is lost. `on_change`: it became usable, or ceased to be.

        `is_name_known`: whether `name` is what the worker calls itself, so that another one at its address is refused.
        """
        self.name = name
        self.address = address
        self.welcome: Welcome | None = None
        self.load = LoadReport(Role.DEFAULT)
        self.num_lost = 0  # times that it ended otherwise than by draining
        self._master_id = master_id
        self._silence_s = silence_s
        self._on_change = on_change
        self._is_name_known = is_name_known
        self._access = access
        self._was_refused = False
        self._is_draining = False
        self._last_used = 0  # number of the newest leg
        self._legs: dict[int, Leg] = {}
        self._leaving: dict[int, Leg] = {}  # over, but the worker may still hold blocks for them
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
            model=self.welcome.model.identity,
            layout_fingerprint=self.welcome.layout_fingerprint,
            block_size=self.welcome.block_size,
            num_blocks=self.welcome.num_blocks,
            max_context=self.welcome.max_context,
            max_num_seqs=self.welcome.max_num_seqs,
            queued_requests=max(self.load.queued_requests, len(prefilling)),
            queued_prefill_tokens=max(self.load.queued_prefill_tokens, sum(leg.uncached_tokens for leg in prefilling)),
            running_sequences=max(self.load.running_sequences, sum(len(leg.unfinished) for leg in legs)),
            available_blocks=self.load.available_blocks - unseen_blocks,
            prefill_speed=self.load.prefill,
            cached_blocks=self._cached,
            last_used=self._last_used,
        )

    def begin(self, start: Start, on_update: OnUpdate, uncached_tokens: int) -> Leg:
        """Send an attempt, while the session is open. `on_update` gets every update, at last a failure if it breaks."""
        assert self.welcome is not None, self.name
        leg = Leg(self, start, on_update, uncached_tokens, set(start.sequences))
        self._legs[start.leg] = leg
        self._last_used = start.leg
        self._send(start)
        return leg

    def end(self, leg: Leg) -> None:
        """Nobody wants the leg any more: cancel it unless it is over. Harmless twice."""
        if leg.number in self._legs:
            self._let_go(leg)
            self._send(Cancel(leg.number))

    def release(self, leg: Leg) -> None:
        """The worker has done its part and needs no word about it."""
        if leg.number in self._legs:
            self._let_go(leg)

    def legs_of(self, request_id: str) -> list[Leg]:
        """Those for which the worker may hold something."""
        legs = (*self._legs.values(), *self._leaving.values())
        return [leg for leg in legs if leg.start.request_id == request_id]

    def cancel_sequence(self, leg: Leg, sequence: int) -> None:
        self._send(Cancel(leg.number, sequence))

    def decode_here(self, leg: Leg) -> None:
        self._send(DecodeHere(leg.number))

    def drain(self) -> None:
        self._send(Drain())

    def set_draining(self, is_draining: bool) -> None:
        """As the registry says; the worker's own reports say so too, a little later."""
        if is_draining != self._is_draining:
            self._is_draining = is_draining
            self._on_change()

    async def run(self) -> None:
        """Connects again and again until cancelled."""
        pause_s = MIN_PAUSE_S
        try:
            while True:
                try:
                    await self._connect()
                except CALL_ENDS as error:
                    pause_s = self._on_end(error, pause_s)
                except Exception as error:
                    logger.exception("worker %s: the session failed, trying again", self.name)
                    pause_s = self._on_end(error, pause_s)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        finally:
            self._lose("no longer known", Loss.DRAINED)

    def _on_end(self, error: Exception, pause_s: float) -> float:
        """Returns for how long to wait before the next connection; `pause_s` was the wait before this one."""
        was_open = self.welcome is not None
        self._lose(describe(error), self._loss_by(error))
        is_news = was_open
        if (refusal := refusal_of(error)) is not None:
            logger.log(logging.DEBUG if self._was_refused else logging.WARNING, "worker %s %s", self.name, refusal)
            is_news, self._was_refused = False, True
        logger.log(logging.WARNING if is_news else logging.DEBUG, "worker %s: %s", self.name, describe(error))
        return MIN_PAUSE_S if was_open else min(pause_s * 2, MAX_PAUSE_S)

    async def _connect(self) -> None:
        """Runs one connection; ends only with an error."""
        async with session_call(self.address, self._access) as call:
            await call.write(Hello(self._master_id), CONNECT_TIMEOUT_S)
            welcome = await call.read(CONNECT_TIMEOUT_S)
            if not isinstance(welcome, Welcome):
                raise ValueError(f"the first message must be welcome, not {type(welcome).__name__}")
            if self._is_name_known and welcome.instance != self.name:
                raise ValueError(f"{welcome.instance} has its address, {self.address}")
            await _first_to_end(self._receive(call, welcome), self._transmit(call))

    async def _receive(self, call: SessionCall, welcome: Welcome) -> None:
        while True:
            match await call.read(self._silence_s):
                case Step(updates):
                    for update in updates:
                        self._on_update(update)
                case LoadReport() as load:
                    self._on_load(load, welcome)
                case CacheEvents() as events:
                    self._on_cache(events)
                case Welcome():
                    raise ValueError("welcome came twice")

    async def _transmit(self, call: SessionCall) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._has_outgoing.wait()
            self._has_outgoing.clear()
            if not self._outgoing:
                await call.write(Heartbeat(), self._silence_s)
            while self._outgoing:
                await call.write(self._outgoing.popleft(), self._silence_s)

    def _open(self, welcome: Welcome) -> None:
        logger.info("worker %s: connected, %s, incarnation %d", self.name, welcome.role.value, welcome.incarnation)
        self.welcome = welcome
        self._was_refused = False
        self._on_change()

    def _loss_by(self, error: Exception) -> Loss:
        if self.load.is_draining or self._is_draining:
            return Loss.DRAINED
        return Loss.SILENT if isinstance(error, WorkerSilent | TimeoutError) else Loss.CLOSED

    def _lose(self, reason: str, loss: Loss) -> None:
        self._outgoing.clear()
        self._cached = set()
        if self.welcome is None:
            return
        self.welcome = None
        self.num_lost += loss is not Loss.DRAINED
        self._fail_legs(f"worker {self.name} was lost: {reason}", loss)
        self._on_change()

    def _fail_legs(self, message: str, loss: Loss) -> None:
        legs, self._legs = self._legs, {}
        leaving, self._leaving = self._leaving, {}
        for leg in (*legs.values(), *leaving.values()):
            leg.ended.set()
        for leg in legs.values():
            leg.loss = loss
            failure = Failure(ErrorCode.UNAVAILABLE, message)
            leg.on_update(leg, LegUpdate(leg.number, failure=failure))

    def _on_update(self, update: LegUpdate) -> None:
        if update.ended:
            self._on_ended(update.leg)
        leg = self._legs.get(update.leg)
        if leg is None:
            return  # ended here while the update was on its way
        leg.has_started |= update.started is not None
        leg.has_prefilled |= update.prefilled is not None or update.transferred is not None
        leg.unfinished.difference_update(d.sequence for d in update.deltas if d.finish_reason is not None)
        if update.failure is not None or not leg.unfinished:
            self._let_go(leg)
        leg.on_update(leg, update)

    def _let_go(self, leg: Leg) -> None:
        del self._legs[leg.number]
        if not leg.ended.is_set():
            self._leaving[leg.number] = leg

    def _on_ended(self, attempt: int) -> None:
        leg = self._leaving.pop(attempt, None) or self._legs.get(attempt)
        if leg is not None:
            leg.ended.set()

    def _on_load(self, load: LoadReport, welcome: Welcome) -> None:
        """The first one opens the session: a worker that is stalled is not even tried."""
        has_changed = (load.is_draining, load.role) != (self.load.is_draining, self.load.role)
        self.load = load
        if load.is_stalled:
            raise WorkerLost("its engine makes no progress")
        if self.welcome is None:
            self._open(welcome)
        elif has_changed:
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


async def _first_to_end(*endless: Coroutine[None, None, None]) -> None:
    """Runs them side by side until one raises, and raises that.

    A task group would swallow a cancellation that comes while one of its tasks fails.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in endless]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
