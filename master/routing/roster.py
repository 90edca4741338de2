"""The workers in the order of their loads, so that a decision looks at a few of many.

`update` moves a worker when its load changes. A shortlist holds those of least load that are able, and those that hold
most of the prompt; what is best among these is for the router and its policy to say, as it is in a small fleet.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

from master.routing.policies import RANKS, Policy, Rank
from master.routing.prefix_index import PrefixIndex
from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage

MAX_EACH = 4  # of the least loaded, and of those that hold most
LARGE = 16  # workers; with fewer, all are looked at

Able = Callable[[WorkerView], bool]

# Decoding is for DECODE workers first, so those of MIX come behind them.
_ORDERS: dict[Stage, tuple[tuple[Role, ...], ...]] = {
    Stage.PREFILL: ((Role.PREFILL, Role.MIX, Role.DEFAULT),),
    Stage.DECODE: ((Role.DECODE,), (Role.MIX,)),
}


class Connected(Protocol):
    """Who is there, as the router needs to know it."""

    @property
    def prefixes(self) -> PrefixIndex: ...

    @property
    def num_changes(self) -> int:
        """Of what is known of workers, but for their load."""

    @property
    def names(self) -> Collection[str]:
        """All that are known, connected or not."""

    @property
    def is_complete(self) -> bool: ...

    def views(self, model: str | None = None) -> list[WorkerView]: ...

    def take_changed(self) -> list[WorkerView]:
        """Those of `views` whose load has changed since the last call."""

    async def changed(self) -> None: ...


class _Order:
    """Workers of some roles by rank."""

    def __init__(self, roles: Collection[Role], stage: Stage, rank: Rank) -> None:
        self.roles = roles
        self._stage = stage
        self._rank = rank
        self._ranks: list[tuple[float, int, str]] = []
        self._rank_of: dict[str, tuple[float, int, str]] = {}

    def put(self, worker: WorkerView) -> None:
        rank = (self._rank(worker, self._stage), worker.last_used, worker.name)
        before = self._rank_of.get(worker.name)
        if rank == before:
            return
        if before is not None:
            del self._ranks[bisect_left(self._ranks, before)]
        self._rank_of[worker.name] = rank
        insort(self._ranks, rank)

    def names(self) -> Iterable[str]:
        return (name for _, _, name in self._ranks)


class Roster:
    def __init__(self, policy: Policy) -> None:
        self._rank = RANKS[policy]
        self.set(())

    @property
    def workers(self) -> Sequence[WorkerView]:
        return tuple(self._workers.values())

    @property
    def has_workers(self) -> bool:
        return bool(self._workers)

    @property
    def is_large(self) -> bool:
        return len(self._workers) > LARGE

    def set(self, workers: Iterable[WorkerView]) -> None:
        """These are there, and no others."""
        self._workers: dict[str, WorkerView] = {}
        self._orders = {
            stage: [_Order(roles, stage, self._rank) for roles in groups] for stage, groups in _ORDERS.items()
        }
        self.kinds: list[WorkerView] = []  # one of each kind
        for worker in workers:
            self.update(worker)
        self.kinds = list({worker.kind: worker for worker in self._workers.values()}.values())

    def update(self, worker: WorkerView) -> None:
        """Its load has changed; its role has not."""
        self._workers[worker.name] = worker
        for orders in self._orders.values():
            for order in orders:
                if worker.role in order.roles:
                    order.put(worker)

    def shortlist(self, prompt: PromptView, stage: Stage, prefixes: PrefixIndex, is_able: Able) -> list[WorkerView]:
        """At least one when any worker of the stage's roles is able."""
        found = self.least_loaded(stage, is_able)
        roles = {role for order in self._orders[stage] for role in order.roles}
        for name in prompt.deepest(prefixes, found[0], MAX_EACH) if found else ():
            worker = self._workers.get(name)
            if (
                worker is not None
                and worker.role in roles
                and all(worker is not other for other in found)
                and is_able(worker)
            ):
                found.append(worker)
        return found

    def least_loaded(self, stage: Stage, is_able: Able, limit: int = MAX_EACH) -> list[WorkerView]:
        """So many of those that are able, of each group of roles."""
        found: list[WorkerView] = []
        for order in self._orders[stage]:
            able = (worker for name in order.names() if is_able(worker := self._workers[name]))
            found += islice(able, limit)
        return found
