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
from master.routing.roster import Connected, Roster
from master.routing.route_choice import Fleet, Hindrance, NoRoute, choose_route, is_fallback
from master.routing.router import Route, can_take_over, holds_all, may_begin, missing_route, pick_decode
from master.routing.suspects import Suspects
from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage

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
        workers: Connected,
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
        self._roster = Roster(policy)
        self._num_changes: int | None = None  # of who is in the roster
        self._missing: str | None = None  # why these could serve nothing

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
        await self._hash(ask.prompt)
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
        self._keep_up(now_s)
        connected = self._roster.workers
        askable = self._health.askable(connected, now_s)
        reason = missing_route(askable, any_role=self._may_fall_back)
        paused = [worker.name for worker in connected if worker not in askable]
        return f"{reason}; {', '.join(paused)} failed too often" if reason is not None and paused else reason

    @property
    def _may_fall_back(self) -> bool:
        """A role may also be missing because all of its workers are given a pause."""
        return self._flags.role_fallback and self._roles.roles is not Roles.STARTING

    def pick_decode(
        self, request_id: str, first: WorkerView, prompt: PromptView, unwanted: Collection[str]
    ) -> WorkerView | None:
        """The worker that is to pull from the first one; None when nobody may who could hold it."""
        now_s = time.monotonic()
        away = {*self._suspects.to_avoid(request_id, now_s), *unwanted}

        def is_able(worker: WorkerView) -> bool:
            return (
                worker.name not in away
                and can_take_over(worker, first)
                and holds_all(worker, prompt)
                and self._health.may_pair(first.name, worker.name, now_s)
            )

        self._keep_up(now_s)
        few: Sequence[WorkerView] = ()
        if self._roster.is_large:
            few = self._roster.shortlist(prompt, Stage.DECODE, self._workers.prefixes, is_able)
        takers = few or [worker for worker in self._workers.views(first.model) if is_able(worker)]
        return pick_decode(takers, first, prompt, unwanted, self._policy)

    async def _hash(self, prompt: PromptView) -> None:
        """A long prompt that may be cached is hashed in a thread, once."""
        self._keep_up(time.monotonic())
        for worker in self._roster.kinds:
            if prompt.is_work(self._workers.prefixes, worker):
                await asyncio.to_thread(prompt.hash_all, worker)

    def _choose(self, ask: RouteAsk) -> Route | NoRoute:
        now_s = time.monotonic()
        self._keep_up(now_s)
        route = self._choose_of_few(ask, now_s) if self._roster.is_large else None
        if route is not None:
            return route
        any_role = self._may_fall_back or ask.is_resumed
        choice = choose_route(self._fleet(ask, now_s), ask.prompt, ask.avoided, any_role=any_role, policy=self._policy)
        if isinstance(choice, Route) and not ask.is_resumed and is_fallback(choice):
            self._metrics.role_fallbacks.inc()
        return choice

    def _choose_of_few(self, ask: RouteAsk, now_s: float) -> Route | None:
        """The choice in a large fleet; None where it takes a look at everybody to say."""
        if self._health.cut_pairs:
            return None
        prompt, away = ask.prompt, {*self._away(ask, now_s), *ask.avoided}

        def is_asked(worker: WorkerView) -> bool:
            is_served = ask.model is None or worker.model == ask.model
            return is_served and worker.name not in away and self._health.may_ask(worker.name, now_s)

        prefixes = self._workers.prefixes
        few = self._roster.shortlist(prompt, Stage.PREFILL, prefixes, lambda w: is_asked(w) and may_begin(w, prompt))
        partners = self._roster.least_loaded(Stage.DECODE, lambda w: is_asked(w) and holds_all(w, prompt), limit=1)
        fleet = list({worker.name: worker for worker in (*few, *partners)}.values())
        choice = choose_route(Fleet(fleet, fleet), prompt, (), any_role=False, policy=self._policy)
        return choice if isinstance(choice, Route) else None

    def _keep_up(self, now_s: float) -> None:
        """Brings the roster to what workers have reported, and notes when roles are missing."""
        if self._num_changes != self._workers.num_changes:
            self._num_changes = self._workers.num_changes
            self._workers.take_changed()
            self._roster.set(self._workers.views())
            self._missing = missing_route(self._roster.workers)
            self._health.keep_only(self._workers.names)
        else:
            for worker in self._workers.take_changed():
                self._roster.update(worker)
        self._observe_roles(now_s)

    def _observe_roles(self, now_s: float) -> None:
        has_workers, reason = self._roster.has_workers, self._missing
        if not self._roles.observe(now_s, has_workers=has_workers, is_whole=reason is None):
            return
        if reason is None:
            logger.info("every role is there again")
        elif self._flags.role_fallback:
            logger.warning("%s: workers of other roles make up for it", reason)

    def _fleet(self, ask: RouteAsk, now_s: float) -> Fleet:
        connected = self._roster.workers if ask.model is None else self._workers.views(ask.model)
        away = self._away(ask, now_s)
        askable = [worker for worker in self._health.askable(connected, now_s) if worker.name not in away]
        refused = self._refused(ask, now_s)
        return Fleet(connected, askable, self._lonely(askable, now_s), refused, self._workers.is_complete)

    def _away(self, ask: RouteAsk, now_s: float) -> Collection[str]:
        """Whom this request does not ask now."""
        return self._refused(ask, now_s) | set(self._suspects.to_avoid(ask.request_id, now_s))

    def _refused(self, ask: RouteAsk, now_s: float) -> set[str]:
        return {name for name, until_s in ask.refused.items() if not ask.is_resumed or now_s < until_s}

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
