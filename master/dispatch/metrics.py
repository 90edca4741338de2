"""What the dispatcher measures: requests of every API, how often they had to move, and who may be asked."""

from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from master.dispatch.fault import Fault
from master.history.record import Outcome, RequestRecord
from master.routing.circuit import CircuitState
from master.routing.fleet_health import FleetHealth

LATENCY_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    *(10, 30, 60, 120, 300, 600),
)
CIRCUIT_VALUES = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}


class DispatchMetrics:
    """The families, in a registry of the caller's. Raises ValueError if they are in it already."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, registry=registry, buckets=LATENCY_BUCKETS_S)

        self._registry = registry
        self._requests = cache(counter("pdserve_requests", "Requests ended, over HTTP and gRPC", "outcome").labels)
        self._by_workers = cache(
            counter("pdserve_requests_by_workers", "Requests finished over one or two workers", "workers").labels
        )
        self._retries = counter("pdserve_retries", "Attempts made again, by what failed the one before", "fault")
        self.moved_requests = counter(
            "pdserve_moved_requests", "Requests that went on elsewhere after their first token"
        )
        self.role_fallbacks = counter("pdserve_role_fallbacks", "Requests served by a worker of another role")
        self.killers = counter(
            "pdserve_requests_ended_as_killers", "Requests ended after two workers were lost under them"
        )
        self.route_wait = histogram("pdserve_route_wait_seconds", "Waits for a worker that ended well")
        self._queue = histogram("pdserve_queue_seconds", "In a worker's queue before prefill, by request")
        self._prefill = histogram("pdserve_prefill_seconds", "Computing the prompt, by request")
        self._decode = histogram("pdserve_decode_seconds", "From the first token to the last, by request")
        self._budget = Gauge("pdserve_retry_budget", "Retries that engine failures may still cost", registry=registry)
        self._waiting = Gauge("pdserve_requests_waiting_for_route", "New requests without a worker", registry=registry)

    def watch(
        self,
        health: FleetHealth,
        *,
        budget: Callable[[], float],
        num_waiting: Callable[[], float],
        num_lost: Callable[[], float],
    ) -> None:
        """Shows what these say at the time of each scrape. Called once."""
        self._budget.set_function(budget)
        self._waiting.set_function(num_waiting)
        self._registry.register(_FleetCollector(health, num_lost))

    def retry(self, fault: Fault) -> None:
        self._retries.labels(fault.value).inc()

    def finish(self, num_workers: int) -> None:
        self._by_workers(str(num_workers)).inc()

    def ended(self, outcome: Outcome, record: RequestRecord | None) -> None:
        """`record` is None for a request that was not admitted."""
        self._requests(outcome.value).inc()
        if record is not None and outcome is Outcome.FINISHED:
            self._queue.observe(record.timeline.queue_s)
            self._prefill.observe(record.timeline.prefill_s)
            self._decode.observe(record.timeline.decode_s)


class _FleetCollector(Collector):
    """Workers, circuits and pairs as they are when asked; what is gone leaves no series behind."""

    def __init__(self, health: FleetHealth, num_lost: Callable[[], float]) -> None:
        self._health = health
        self._num_lost = num_lost

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        circuits = GaugeMetricFamily(
            "pdserve_circuit_state", "Of each worker: 0 closed, 1 half open, 2 open", labels=["worker"]
        )
        for worker, state in self._health.circuits.items():
            circuits.add_metric([worker], CIRCUIT_VALUES[state])
        yield circuits
        failures = CounterMetricFamily(
            "pdserve_pair_failures", "KV that did not get from one to the other", labels=["prefill", "decode"]
        )
        for (prefill, decode), number in self._health.num_pair_failures.items():
            failures.add_metric([prefill, decode], number)
        yield failures
        yield CounterMetricFamily("pdserve_lost_workers", "Workers that died, hung or were cut off", self._num_lost())
