"""Who may be asked now: the circuits of all workers and the health of all pairs of them.

Each change is logged once and told to `on_change`, so that who waits for a route looks again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from master.routing.circuit import Circuit, CircuitState
from master.routing.pair_health import Pair, PairHealth
from master.routing.views import WorkerView

logger = logging.getLogger(__name__)


class FleetHealth:
    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.num_pair_failures: Counter[Pair] = Counter()
        self._on_change = on_change
        self._circuits: dict[str, Circuit] = {}
        self._pairs = PairHealth()

    @property
    def circuits(self) -> dict[str, CircuitState]:
        """Every worker that has been asked so far has one."""
        return {worker: circuit.state for worker, circuit in self._circuits.items()}

    def circuit_of(self, worker: str) -> CircuitState:
        circuit = self._circuits.get(worker)
        return CircuitState.CLOSED if circuit is None else circuit.state

    @property
    def cut_pairs(self) -> list[Pair]:
        return self._pairs.marked

    def may_ask(self, worker: str, now_s: float) -> bool:
        """Whether its circuit lets a leg through."""
        circuit = self._circuits.get(worker)
        return circuit is None or circuit.may_ask(now_s)

    def may_pair(self, prefill: str, decode: str, now_s: float) -> bool:
        """Whether `decode` may be asked, and could pull from `prefill` as far as is known."""
        return self.may_ask(decode, now_s) and self._pairs.may_try((prefill, decode), now_s)

    def askable(self, workers: Sequence[WorkerView], now_s: float) -> list[WorkerView]:
        """Those whose circuits let a leg through."""
        return [worker for worker in workers if self.may_ask(worker.name, now_s)]

    def takers(self, prefill: str, workers: Sequence[WorkerView], now_s: float) -> list[WorkerView]:
        """The askable ones that could pull from `prefill`, as far as is known."""
        return [worker for worker in workers if self.may_pair(prefill, worker.name, now_s)]

    def next_change_s(self, now_s: float) -> float | None:
        """When time alone lets another worker be asked."""
        probes = [circuit.next_probe_s(now_s) for circuit in self._circuits.values()]
        return min((probe for probe in probes if probe is not None), default=None)

    def asked(self, worker: str, now_s: float) -> None:
        """A leg begins there."""
        self._change(worker, lambda circuit: circuit.ask(now_s), "is tried")

    def generated(self, worker: str, now_s: float) -> None:
        """A leg has a token that the worker computed."""
        self._change(worker, lambda circuit: circuit.succeed(now_s), "generates again")

    def engine_failed(self, worker: str, now_s: float, reason: str) -> None:
        self._change(worker, lambda circuit: circuit.fail(now_s), reason)

    def paired(self, prefill: str, decode: str, now_s: float) -> None:
        """A leg begins on `decode` that is to pull from `prefill`."""
        self._pairs.try_once((prefill, decode), now_s)

    def transferred(self, prefill: str, decode: str) -> None:
        if self._pairs.succeed((prefill, decode)):
            logger.info("worker %s reaches %s again", decode, prefill)
            self._on_change()

    def transfer_failed(self, prefill: str, decode: str, now_s: float, reason: str) -> None:
        pair = (prefill, decode)
        self.num_pair_failures[pair] += 1
        if self._pairs.fail(pair, now_s):
            logger.warning("worker %s does not get KV from %s, they are kept apart: %s", decode, prefill, reason)
            self._on_change()

    def keep_only(self, known: Collection[str]) -> None:
        """What is not known any more is forgotten; a worker of the same name begins anew."""
        for worker in [worker for worker in self._circuits if worker not in known]:
            del self._circuits[worker]
            self._pairs.forget(worker)
            self.num_pair_failures = Counter({p: n for p, n in self.num_pair_failures.items() if worker not in p})

    def _circuit(self, worker: str) -> Circuit:
        return self._circuits.setdefault(worker, Circuit())

    def _change(self, worker: str, step: Callable[[Circuit], None], reason: str) -> None:
        circuit = self._circuit(worker)
        before = circuit.state
        step(circuit)
        if circuit.state is not before:
            level = logging.WARNING if circuit.state is CircuitState.OPEN else logging.INFO
            logger.log(level, "worker %s: its circuit is %s: %s", worker, circuit.state.value, reason)
            self._on_change()
