"""The worker's Prometheus metrics, read from the engine when they are scraped: nothing is counted twice."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from worker.engines.compute_engine import ComputeEngine
from worker.legs.leg_life import Legs


class WorkerCollector(Collector):
    def __init__(self, engine: ComputeEngine, legs: Legs) -> None:
        self._engine = engine
        self._legs = legs

    def collect(self) -> Iterator[Metric]:
        load, figures = self._engine.load, self._engine.figures
        yield _gauge("queued_requests", "Legs that wait for blocks", load.queued_requests)
        yield _gauge("queued_prefill_tokens", "Prompt tokens still to be computed", load.queued_prefill_tokens)
        yield _gauge("running_sequences", "Sequences that hold blocks and run or pull", load.running_sequences)
        yield _gauge("exports", "Hand-offs waiting for a decode worker", load.exports)
        blocks = GaugeMetricFamily("pdserve_kv_blocks", "Blocks of the KV pool by state", labels=["state"])
        for state, number in (
            ("free", figures.free_blocks),
            ("cached", figures.cached_blocks),
            ("held", figures.held_blocks),
        ):
            blocks.add_metric([state], number)
        yield blocks
        yield _counter("engine_steps", "Forward passes", figures.num_steps)
        yield _counter("preemptions", "Sequences that gave up their blocks", figures.num_preemptions)
        tokens = CounterMetricFamily("pdserve_computed_tokens", "Tokens computed by stage", labels=["stage"])
        tokens.add_metric(["prefill"], figures.num_prefill_tokens)
        tokens.add_metric(["decode"], figures.num_decode_tokens)
        yield tokens
        failures = CounterMetricFamily("pdserve_leg_failures", "Legs refused or failed, by code", labels=["code"])
        for code, number in self._legs.num_failures.items():
            failures.add_metric([code.value.lower()], number)
        yield failures
        is_failing = self._legs.failing_reason is not None
        yield _gauge("steps_failing", "1 while no leg is taken because steps fail", is_failing)
        yield from self._transfers()

    def _transfers(self) -> Iterator[Metric]:
        transfers = self._engine.transfers
        sent, received = transfers.sent, transfers.received
        num_bytes = CounterMetricFamily("pdserve_transfer_sent_bytes", "KV sent", labels=["transport"])
        num_blocks = CounterMetricFamily("pdserve_transfer_sent_blocks", "Blocks sent", labels=["transport"])
        for transport in sent.num_bytes:
            num_bytes.add_metric([transport], sent.num_bytes[transport])
            num_blocks.add_metric([transport], sent.num_blocks[transport])
        released = CounterMetricFamily("pdserve_exports_released", "Hand-offs by how they ended", labels=["reason"])
        for reason, number in sent.released.items():
            released.add_metric([reason.value], number)
        yield from (num_bytes, num_blocks, released)
        duration = SummaryMetricFamily(
            "pdserve_transfer_seconds", "From asking for KV to having it", labels=["transport"]
        )
        waiting = CounterMetricFamily(
            "pdserve_transfer_wait_seconds", "Of it, prefill still computing", labels=["transport"]
        )
        for transport, times in transfers.times.items():
            duration.add_metric([transport], times.num_pulls, times.total_s)
            waiting.add_metric([transport], times.wait_s)
        yield from (duration, waiting)
        yield _counter("transfer_received_bytes", "KV received", received.bytes_received)
        yield _counter("transfer_received_blocks", "Blocks received", received.blocks_received)
        yield _counter("transfer_skipped_blocks", "Blocks not pulled: they were here", received.blocks_skipped)
        yield _counter("transfer_failures", "Pulls that failed", received.failures)
        connections = CounterMetricFamily(
            "pdserve_transfer_connections", "Connections by what became of them", labels=["outcome"]
        )
        for outcome, number in sent.connections.items():
            connections.add_metric([outcome.value], number)
        yield connections
        yield _gauge("transfers_running", "Decode workers being sent KV", sent.num_connections)


def worker_metrics(engine: ComputeEngine, legs: Legs) -> CollectorRegistry:
    """What Prometheus scrapes, the process's own figures included."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(WorkerCollector(engine, legs))
    return registry


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pdserve_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pdserve_{name}", text, value)
