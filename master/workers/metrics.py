"""How many workers are in which state, counted when it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from master.workers.session import WorkerSession


class WorkersCollector(Collector):
    def __init__(self, sessions: Callable[[], Sequence[WorkerSession]]) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        states = Counter(session.shown_state for session in self._sessions())
        family = GaugeMetricFamily("pdserve_workers", "Workers that this master knows", labels=["state"])
        for state, number in states.items():
            family.add_metric([state], number)
        yield family
