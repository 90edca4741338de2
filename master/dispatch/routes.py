"""Where requests go, and where they wait until there is a way.

A new request waits `--route_timeout_s` for a worker that could take it, and one that has begun `--resume_timeout_s`:
its client can't ask for the same again. Whoever waits looks again whenever a worker comes or goes, and when one may be
asked that was not to be asked before.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from master.dispatch.flags import DispatchFlags
from master.dispatch.metrics import DispatchMetrics
from master.errors import DEFAULT_RETRY_AFTER_S, ErrorKind, ServingError, invalid
from master.routing.fleet_health import FleetHealth
from master.routing.policies import Policy
from master.routing.role_fallback import RoleFallback, Roles
from master.routing.route_choice import Fleet, Hindrance, NoRoute, choose_route, is_fallback
from master.routing.router import Route, missing_route
from master.routing.suspects import Suspects
from master.routing.views import PromptView, WorkerView
from master.workers.workers import Workers
from protos.session_messages import Role

logger = logging.getLogger(__name__)

RETRY_AFTER_S = DEFAULT_RETRY_AFTER_S[ErrorKind.UNAVAILABLE]


@dataclass(frozen=True, slots=True)
class RouteAsk:
    """Who asks. `avoided` workers failed it. Those that `refused` it are asked again after the time given, or never if
    the request is new: its client can try again.

    Only workers of `model` may go on with what has emitted tokens already.
    """

    request_id: str
    prompt: PromptView
    is_resumed: bool = False
    avoided: Collection[str] = ()
    refused: Mapping[str, float] = field(default_factory=dict)
    model: str | None = None


class Routes:
    def __init__(
        self,
        workers: Workers,
        health: FleetHealth,
        suspects: Suspects,
        flags: DispatchFlags,
        policy: Policy,
        metrics: DispatchMetrics,
    ) -> None:
        self._workers = workers
        self._health = health
        self._suspects = suspects
        self._flags = flags
        self._policy = policy
        self._metrics = metrics
        self._next_change = asyncio.Event()
        self._waiting: deque[float] = deque()  # new requests: when each will give up
        self._roles = RoleFallback(flags.role_grace_s)

    @property
    def num_waiting(self) -> int:
        """New requests that wait."""
        return len(self._waiting)

    def wake(self) -> None:
        """Somebody may be asked who was not to be asked before."""
        self._next_change.set()
        self._next_change = asyncio.Event()

    async def find(self, ask: RouteAsk) -> Route:
        """Raises ServingError when there is none in time, or could never be one."""
        choice = self._choose(ask)
        if isinstance(choice, Route):
            return choice
        began_s = time.monotonic()
        patience_s = self._flags.resume_timeout_s if ask.is_resumed else self._flags.route_timeout_s
        with self._place(ask, choice, began_s + patience_s):
            while isinstance(choice, NoRoute):
                _raise_final(choice, ask)
                left_s = began_s + patience_s - time.monotonic()
                if left_s <= 0:
                    raise self._unavailable(choice)
                await self._change(ask, left_s)
                choice = self._choose(ask)
        self._metrics.route_wait.observe(time.monotonic() - began_s)
        return choice

    def missing(self) -> str | None:
        """Why no request could begin now; None when one could."""
        now_s = time.monotonic()
        connected = self._workers.views()
        self._observe_roles(connected, now_s)
        askable = self._health.askable(connected, now_s)
        reason = missing_route(askable, any_role=self._may_fall_back)
        paused = [worker.name for worker in connected if worker not in askable]
        return f"{reason}; {', '.join(paused)} failed too often" if reason is not None and paused else reason

    @property
    def _may_fall_back(self) -> bool:
        """A role may also be missing because all of its workers are given a pause."""
        return self._flags.role_fallback and self._roles.roles is not Roles.STARTING

    def _choose(self, ask: RouteAsk) -> Route | NoRoute:
        now_s = time.monotonic()
        fleet = self._fleet(ask, now_s)
        self._observe_roles(fleet.connected if ask.model is None else self._workers.views(), now_s)
        any_role = self._may_fall_back or ask.is_resumed
        choice = choose_route(fleet, ask.prompt, ask.avoided, any_role=any_role, policy=self._policy)
        if isinstance(choice, Route) and not ask.is_resumed and is_fallback(choice):
            self._metrics.role_fallbacks.inc()
        return choice

    def _observe_roles(self, connected: Sequence[WorkerView], now_s: float) -> None:
        reason = missing_route(connected)
        if not self._roles.observe(now_s, has_workers=bool(connected), is_whole=reason is None):
            return
        if reason is None:
            logger.info("every role is there again")
        elif self._flags.role_fallback:
            logger.warning("%s: workers of other roles make up for it", reason)

    def _fleet(self, ask: RouteAsk, now_s: float) -> Fleet:
        connected = self._workers.views(ask.model)
        self._health.keep_only({session.name for session in self._workers.sessions})
        refused = {name for name, until_s in ask.refused.items() if not ask.is_resumed or now_s < until_s}
        away = refused | set(self._suspects.to_avoid(ask.request_id, now_s))
        askable = [worker for worker in self._health.askable(connected, now_s) if worker.name not in away]
        return Fleet(connected, askable, self._lonely(askable, now_s), refused, self._workers.is_complete)

    def _lonely(self, askable: list[WorkerView], now_s: float) -> Collection[str]:
        """Prefill workers that reach no other; usually no pair is cut, and nobody is asked."""
        if not self._health.cut_pairs:
            return ()
        takers = [worker for worker in askable if worker.role in (Role.DECODE, Role.MIX)]
        prefill = [worker.name for worker in askable if worker.role is Role.PREFILL]
        return [name for name in prefill if not self._health.takers(name, takers, now_s)]

    async def _change(self, ask: RouteAsk, timeout_s: float) -> None:
        """Returns when the choice may be another one, at the latest after the time-out."""
        now_s = time.monotonic()
        times = [
            self._health.next_change_s(now_s),
            self._suspects.isolated_until_s(ask.request_id),
            self._roles.next_change_s(),
            *ask.refused.values(),
        ]
        next_s = min((at_s for at_s in times if at_s is not None and at_s > now_s), default=math.inf)
        changes = [asyncio.ensure_future(self._workers.changed()), asyncio.ensure_future(self._next_change.wait())]
        try:
            timeout_s = min(timeout_s, next_s - now_s)
            await asyncio.wait(changes, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for change in changes:
                change.cancel()

    @contextlib.contextmanager
    def _place(self, ask: RouteAsk, choice: NoRoute, until_s: float) -> Iterator[None]:
        """Among those who wait, whose number is bounded; what has begun is always let in."""
        if ask.is_resumed:
            yield
            return
        _raise_final(choice, ask)
        if self.num_waiting >= self._flags.max_waiting_requests:
            first_s = self._waiting[0] - time.monotonic() if self._waiting else 0.0
            message = f"{choice.reason}; {self.num_waiting} requests wait already"
            raise ServingError(ErrorKind.UNAVAILABLE, message, retry_after_s=max(RETRY_AFTER_S, math.ceil(first_s)))
        self._waiting.append(until_s)
        try:
            yield
        finally:
            self._waiting.remove(until_s)

    def _unavailable(self, choice: NoRoute) -> ServingError:
        """A request that comes back waits anew, so it may come as soon as somebody is tried again."""
        now_s = time.monotonic()
        next_s = self._health.next_change_s(now_s)
        retry_after_s = RETRY_AFTER_S if next_s is None else max(RETRY_AFTER_S, math.ceil(next_s - now_s))
        return ServingError(ErrorKind.UNAVAILABLE, choice.reason, retry_after_s=retry_after_s)


def _raise_final(choice: NoRoute, ask: RouteAsk) -> None:
    """Returns when waiting can help."""
    if ask.is_resumed:
        return
    if choice.hindrance is Hindrance.NEVER:
        raise invalid("max_tokens", choice.reason)
    if choice.hindrance is Hindrance.NO_ROOM:
        raise ServingError(ErrorKind.OVERLOADED, choice.reason)
