"""How many workers are in which state, and what is known of their caches, counted when it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from master.routing.prefix_index import PrefixIndex
from master.workers.session import WorkerSession


class WorkersCollector(Collector):
    def __init__(self, sessions: Callable[[], Sequence[WorkerSession]], prefixes: PrefixIndex) -> None:
        self._sessions = sessions
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        states = Counter(session.shown_state for session in self._sessions())
        family = GaugeMetricFamily("pdserve_workers", "Workers that this master knows", labels=["state"])
        for state, number in states.items():
            family.add_metric([state], number)
        yield family
        yield GaugeMetricFamily(
            "pdserve_prefix_index_blocks", "Blocks that some worker is known to hold", value=len(self._prefixes)
        )
        yield CounterMetricFamily(
            "pdserve_prefix_index_left_out", "Blocks that did not fit the index", value=self._prefixes.num_left_out
        )
