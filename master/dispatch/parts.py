"""What the runs of all requests of one master share."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from master.dispatch.flags import DispatchFlags
from master.dispatch.metrics import DispatchMetrics
from master.dispatch.output_pace import OutputPace
from master.dispatch.retry_budget import RetryBudget
from master.dispatch.routes import Routes
from master.history.log import RequestLog
from master.routing.fleet_health import FleetHealth
from master.routing.policies import Policy, soonest
from master.routing.suspects import Suspects
from master.workers.workers import Workers


@dataclass(frozen=True, slots=True)
class DispatchParts:
    workers: Workers
    health: FleetHealth
    suspects: Suspects
    routes: Routes
    budget: RetryBudget
    metrics: DispatchMetrics
    log: RequestLog
    flags: DispatchFlags
    policy: Policy
    vocab_size: int
    pace: OutputPace = field(default_factory=OutputPace)
    leg_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def dispatch_parts(
    workers: Workers,
    vocab_size: int,
    flags: DispatchFlags,
    *,
    policy: Policy = soonest,
    registry: CollectorRegistry | None = None,
    on_change: Callable[[], None] = lambda: None,
) -> DispatchParts:
    """`on_change`: another worker may be asked, or may not be asked any more. Metrics are made in `registry`."""

    def tell() -> None:
        routes.wake()
        on_change()

    health, suspects = FleetHealth(tell), Suspects()
    budget = RetryBudget(flags.retry_share, flags.retry_burst)
    metrics = DispatchMetrics(CollectorRegistry() if registry is None else registry)
    routes = Routes(workers, health, suspects, flags, policy, metrics)
    metrics.watch(
        health,
        budget=lambda: budget.left,
        num_waiting=lambda: routes.num_waiting,
        num_lost=lambda: workers.num_lost,
    )
    return DispatchParts(
        workers, health, suspects, routes, budget, metrics, RequestLog(metrics.ended), flags, policy, vocab_size
    )
