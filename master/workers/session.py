"""This master's session with one worker: kept open for as long as the worker is known.

    CONNECTING --welcome, first load--> OPEN --two reports missed--> QUIET --heard again--> OPEN
    OPEN, QUIET --broken, silent, stalled--> CONNECTING, with growing pauses
    CONNECTING --one refuses the other--> REFUSED --later tries--> OPEN
    OPEN, QUIET --superseded--> RETIRED --no leg is left--> the end

While it is open, attempts run on it as legs. When it breaks, each of them is told that the worker is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from master.routing.prefix_index import PrefixIndex
from master.routing.views import WorkerView
from master.workers.cache_index import CacheIndex
from master.workers.greeting import MasterIdentity
from master.workers.leg import Leg, Loss, OnUpdate, SessionLegs
from master.workers.outbox import Outbox
from master.workers.session_call import (
    CALL_ENDS,
    PARTING_S,
    SessionCall,
    SessionRefused,
    WorkerLost,
    WorkerSilent,
    describe,
    refusal_of,
    session_call,
)
from master.workers.session_state import Patience, SessionState
from master.workers.worker_view import worker_view
from protos.session_messages import (
    CacheEvents,
    Drain,
    LoadReport,
    Role,
    SnapshotRequest,
    Standing,
    Start,
    Step,
    ToMaster,
    ToWorker,
    Welcome,
)
from registry.backoff import Backoff

logger = logging.getLogger(__name__)

MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0


class WorkerSession:
    """`run` it in a task; everything else is called from the same loop and returns at once."""

    def __init__(
        self,
        master: MasterIdentity,
        name: str,
        address: str,
        *,
        patience: Patience,
        on_change: Callable[[], None],
        on_load: Callable[["WorkerSession"], None],
        prefixes: PrefixIndex,
        is_name_known: bool = True,
        is_draining: bool = False,
    ) -> None:
        """`on_change`: it became usable, or ceased to be. `on_load`: its view has changed.

        `is_draining`: as the registry says.
        `is_name_known`: whether `name` is what the worker calls itself, so that another one at its address is refused.
        """
        self.name = name
        self.address = address
        self.state = SessionState.CONNECTING
        self.trouble: str | None = None  # why it is not open
        self.refusal: str | None = None  # why nothing is sent to it though it is open
        self.welcome: Welcome | None = None  # the latest, also of a worker that is away now
        self.load = LoadReport(Role.DEFAULT)
        self.num_lost = 0  # times that it ended otherwise than by draining
        self._master = master
        self._patience = patience
        self._on_change = on_change
        self._is_name_known = is_name_known
        self._outbox = Outbox()
        self._told: Standing | None = None
        self._is_draining = is_draining
        self._on_load_change = on_load
        self._legs = SessionLegs(name, self._send, self._outbox.wake, self._forget_view)
        self._cache = CacheIndex(prefixes, name)
        self._view: WorkerView | None = None  # until something in it changes
        self._backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)  # between connections

    @property
    def is_open(self) -> bool:
        return self.state in (SessionState.OPEN, SessionState.QUIET, SessionState.RETIRED)

    @property
    def is_draining(self) -> bool:
        return self._is_draining or self.load.is_draining

    @property
    def is_usable(self) -> bool:
        """Whether new attempts may be sent, as far as the worker is concerned."""
        return self.state is SessionState.OPEN and not self.is_draining and self.load.failing_reason is None

    @property
    def is_used(self) -> bool:
        """Whether new requests may be sent."""
        return self.refusal is None and self.is_usable

    @property
    def is_away(self) -> bool:
        """Whether it may become usable again by itself."""
        is_missing = self.state in (SessionState.CONNECTING, SessionState.QUIET)
        return is_missing or self.load.failing_reason is not None

    @property
    def shown_state(self) -> str:
        """A word that people read; `SessionState` and what others think of the worker."""
        if self.is_open and self.refusal is not None:
            return "not used"
        if self.is_open and self.is_draining:
            return "draining"
        if self.is_open and self.load.failing_reason is not None:
            return "failing"
        return self.state.value

    @property
    def shown_trouble(self) -> str | None:
        """Why it is not used, for people."""
        return (self.refusal or self.load.failing_reason) if self.is_open else self.trouble

    @property
    def num_legs(self) -> int:
        return len(self._legs)

    @property
    def num_cached_blocks(self) -> int:
        return len(self._cache.blocks)

    def view(self) -> WorkerView:
        """What routing goes by: the same object until something of it changes. The worker must have been heard of."""
        assert self.welcome is not None, self.name
        if self._view is None:
            self._view = worker_view(self.name, self.welcome, self.load, self._legs, self._cache.blocks)
        return self._view

    def begin(self, start: Start, on_update: OnUpdate, uncached_tokens: int) -> Leg:
        """Send an attempt, while the session is open. `on_update` gets every update, at last a failure if it breaks."""
        assert self.is_open, self.name
        return self._legs.begin(start, on_update, uncached_tokens)

    def legs_of(self, request_id: str) -> list[Leg]:
        """Those for which the worker may hold something."""
        return self._legs.of(request_id)

    def drain(self) -> None:
        self._send(Drain())

    def set_draining(self, is_draining: bool) -> None:
        """The registry says so; the worker's own reports do too, a little later."""
        if is_draining != self._is_draining:
            self._is_draining = is_draining
            self._on_change()

    def stand(self, refusal: str | None) -> None:
        """Says why the cluster does not use this worker, or None if it does. The worker is told."""
        if refusal != self.refusal:
            level, now = (logging.INFO, "used") if refusal is None else (logging.WARNING, f"not used: {refusal}")
            logger.log(level, "worker %s is %s", self.name, now)
        self.refusal = refusal
        self._tell_standing()

    def retire(self, reason: str) -> None:
        """It takes nothing new and ends once its legs have; only while it is open."""
        self.stand(reason)
        self.state = SessionState.RETIRED
        self._outbox.wake()

    async def run(self) -> None:
        """Connects again and again until cancelled or retired."""
        try:
            while self.state is not SessionState.RETIRED:
                try:
                    await self._connect()
                except CALL_ENDS as error:
                    self._on_end(error)
                except Exception as error:
                    logger.exception("worker %s: the session failed, trying again", self.name)
                    self._on_end(error)
                await asyncio.sleep(self._backoff.next_s())
        finally:
            self._lose("no longer known", Loss.DRAINED)

    def _on_end(self, error: Exception) -> None:
        was_open, refusal = self.is_open, refusal_of(error)
        reason = refusal or describe(error)
        # A worker that is away is away in many words; only what a person can mend is worth another line.
        is_news = was_open or self.trouble is None or (refusal is not None and refusal != self.trouble)
        logger.log(logging.WARNING if is_news else logging.DEBUG, "worker %s, %s: %s", self.name, self.address, reason)
        if is_news or refusal is not None:
            self.trouble = reason
        self._lose(reason, self._loss_by(error))
        if self.state is not SessionState.RETIRED:
            self.state = SessionState.CONNECTING if refusal is None else SessionState.REFUSED
        if was_open:
            self._backoff.reset()

    async def _connect(self) -> None:
        """Runs one connection; ends only with an error."""
        async with session_call(self.address, self._master.access) as call:
            hello = self._master.hello()
            await call.write(hello, self._patience.connect_s)
            welcome = await call.read(self._patience.connect_s)
            if welcome is None:
                raise WorkerLost(f"no greeting within {self._patience.connect_s:g} s")
            if not isinstance(welcome, Welcome):
                raise ValueError(f"the first message must be welcome, not {type(welcome).__name__}")
            problem = self._master.problem(hello, welcome, self.name if self._is_name_known else None)
            if problem is not None:
                await call.write(Standing(problem), self._patience.connect_s)
                await call.leave()
                await call.wait_for_end()
                raise SessionRefused(problem)
            quiet_s = min(self._patience.quiet_s, self._patience.silence_s / 2)
            watching = call.watch(quiet_s, self._patience.silence_s, self._be_quiet)
            await _first_to_end(self._receive(call, welcome), self._transmit(call), watching, self._outbox.beat())

    async def _receive(self, call: SessionCall, welcome: Welcome) -> None:
        while True:
            self._on_message(await call.receive(), welcome)

    async def _transmit(self, call: SessionCall) -> None:
        while True:
            await self._outbox.send(call)
            if self.state is SessionState.RETIRED and len(self._legs) == 0:
                await call.leave()
                await asyncio.sleep(PARTING_S)  # usually the worker ends the call before
                raise WorkerLost("superseded")

    def _on_message(self, message: ToMaster, welcome: Welcome) -> None:
        if self.state is SessionState.QUIET:
            self._set_state(SessionState.OPEN)
        match message:
            case Step(updates):
                for update in updates:
                    self._legs.take(update)
            case LoadReport():
                self._on_load(message, welcome)
            case CacheEvents():
                is_whole = self._cache.add(message)
                self._forget_view()
                if not is_whole:
                    logger.warning("worker %s: cache events before number %d are missing", self.name, message.number)
                    self._send(SnapshotRequest())
            case Welcome():
                raise ValueError("welcome came twice")

    def _on_load(self, load: LoadReport, welcome: Welcome) -> None:
        """The first one opens the session: a worker that is stalled is not even tried."""
        before, self.load = self.load, load
        self._forget_view()
        if load.is_stalled:
            raise WorkerLost("its engine makes no progress")
        if not self.is_open:
            self._open(welcome)
        elif _decisive(load) != _decisive(before):
            self._on_change()

    def _open(self, welcome: Welcome) -> None:
        logger.info("worker %s: connected, %s, incarnation %d", self.name, welcome.role.value, welcome.incarnation)
        self.welcome = welcome
        self._forget_view()
        self.trouble = None
        self._told = None
        self._set_state(SessionState.OPEN)
        self._tell_standing()

    def _be_quiet(self) -> None:
        if self.state is SessionState.OPEN:
            self._set_state(SessionState.QUIET)

    def _set_state(self, state: SessionState) -> None:
        self.state = state
        self._on_change()

    def _loss_by(self, error: Exception) -> Loss:
        if self.is_draining or self.state is SessionState.RETIRED:
            return Loss.DRAINED
        return Loss.SILENT if isinstance(error, WorkerSilent) else Loss.CLOSED

    def _lose(self, reason: str, loss: Loss) -> None:
        self._outbox.clear()
        self._cache.forget()
        self._forget_view()
        if not self.is_open:
            return
        if self.state is not SessionState.RETIRED:
            self.state = SessionState.CONNECTING
        self.num_lost += loss is not Loss.DRAINED
        self._legs.lose(f"worker {self.name} was lost: {reason}", loss)
        self._on_change()

    def _forget_view(self) -> None:
        if self._view is not None:
            self._view = None
            self._on_load_change(self)

    def _tell_standing(self) -> None:
        standing = Standing(self.refusal)
        if self.is_open and standing != self._told:
            self._told = standing
            self._send(standing)

    def _send(self, message: ToWorker) -> None:
        if self.is_open:
            self._outbox.put(message)


def _decisive(load: LoadReport) -> tuple[Role, bool, str | None]:
    """What of a load report changes who may be asked."""
    return (load.role, load.is_draining, load.failing_reason)


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
