"""Cancels, broken sessions, lost peers and damage at every state change of a leg, frame of a transfer and step.

Whatever happens: no wrong token, and both pools whole.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from protos.sampling_messages import SamplingParams
from protos.session_messages import LegUpdate, Stage, Start
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import BLOCK_SIZE, Master, Node
from tests.worker.engines.torch.reference import prompt
from worker.faults.plan import Action, Fault, FaultPlan, FaultPoint, Place, Repeat

PROMPT = prompt(3 * BLOCK_SIZE + 5)
SAMPLING = SamplingParams(max_tokens=4, temperature=1.0, seed=5)
TRANSPORTS = ("vm_read", "tcp")
MAX_MOMENTS = 60  # far more than a request has; a test that never ends would hide what it looks for


class Moments(FaultPoint):
    """A place where something happens as the n-th frame passes."""

    def __init__(self) -> None:
        super().__init__()
        self._act: tuple[int, Callable[[], None]] | None = None

    def on(self, number: int, act: Callable[[], None]) -> None:
        self.arm()
        self._act = (number, act)

    def passing(self) -> list[Fault]:
        faults = super().passing()
        if self._act is not None and self._act[0] == self.count:
            act, self._act = self._act[1], None
            act()
        return faults


class Side(Node):
    """A node whose frames can be disturbed, and whose master can leave."""

    def __init__(self, model: Path, **flags: object) -> None:
        self.frames = Moments()
        self.steps = FaultPoint()
        super().__init__(model, FaultPlan(transfer=self.frames, step=self.steps), **flags)

    def lose_master(self) -> None:
        self.legs.detach(self.master)

    def renew_master(self) -> None:
        self.lose_master()
        self.master = Master()
        self.legs.attach(self.master)


class Pair:
    """A prefill and a decode worker, and one request over both at a time."""

    def __init__(self, prefill: Side, decode: Side) -> None:
        self.prefill = prefill
        self.decode = decode
        self.expected = prefill.run(PROMPT, SAMPLING, cache_salt="alone").token_ids[0]
        self._salts = itertools.count()
        self._salt = ""
        self.first: Start | None = None
        self.second: Start | None = None

    def run(self, watch: Callable[[Node], None] = lambda _: None) -> None:
        """One request, as a master runs it: D is asked when P has begun, and P is told when D is done.

        `watch` is called on the engine thread of a node that has just told its master something.
        """
        self.first = self.second = None
        self._salt = str(next(self._salts))
        self.prefill.master.on_update(partial(self._on_prefill, watch))
        self.decode.master.on_update(lambda _: watch(self.decode))
        self.first = self.prefill.start(PROMPT, SAMPLING, Stage.PREFILL, cache_salt=self._salt)
        self.prefill.flush()
        for node in (self.decode, self.prefill):
            node.flush()
            eventually(lambda node=node: self._is_over(node), "the leg is over")  # type: ignore[misc]

    def _is_over(self, node: Node) -> bool:
        """P's leg may wait for ever when D's is gone: its master ends it."""
        if node is self.prefill and self.first is not None:
            self.prefill.cancel(self.first)
        return node.legs.num_unreleased == 0

    def _on_prefill(self, watch: Callable[[Node], None], update: LegUpdate) -> None:
        if update.started is not None:
            handle = update.started.kv_handle
            self.second = self.decode.start(PROMPT, SAMPLING, Stage.DECODE, cache_salt=self._salt, kv_handle=handle)
        watch(self.prefill)

    def settle(self) -> None:
        """Nothing is held any more, and what was told is right."""
        for node, start in ((self.prefill, self.first), (self.decode, self.second)):
            node.quiesce()
            if start is not None:
                outcome = node.master.outcome(start.leg)
                tokens = outcome.token_ids.get(0, [])
                assert tokens == self.expected[: len(tokens)], outcome
            assert node.master.problem is None
            node.renew_master()

    def cancel_prefill(self) -> None:
        assert self.first is not None
        self.prefill.cancel(self.first)

    def cancel_decode(self) -> None:
        if self.second is not None:
            self.decode.cancel(self.second)

    def decode_here(self) -> None:
        assert self.first is not None
        self.prefill.legs.decode_here(self.prefill.master, self.first.leg)

    def lose_prefill_master(self) -> None:
        self.prefill.lose_master()

    def lose_decode_master(self) -> None:
        self.decode.lose_master()


ACTS: dict[str, Callable[[Pair], None]] = {
    "cancel P": Pair.cancel_prefill,
    "cancel D": Pair.cancel_decode,
    "decode here": Pair.decode_here,
    "P loses its master": Pair.lose_prefill_master,
    "D loses its master": Pair.lose_decode_master,
}


@pytest.fixture(scope="module", params=TRANSPORTS)
def pair(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[Pair]:
    flags: dict[str, object] = {"num_blocks": 24, "max_tokens_per_step": BLOCK_SIZE, "transports": (request.param,)}
    short = {"transfer_silence_timeout_s": 0.25, "transfer_connect_timeout_s": 0.25}
    with Side(tiny_llama, **flags) as prefill, Side(tiny_llama, **flags, **short) as decode:
        yield Pair(prefill, decode)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_at_every_state_change(pair: Pair, side: str, act: str) -> None:
    node = pair.prefill if side == "prefill" else pair.decode
    for moment in range(1, MAX_MOMENTS):
        told = itertools.count(1)

        def watch(teller: Node, moment: int = moment, told: Iterator[int] = told) -> None:
            if teller is node and next(told) == moment:
                ACTS[act](pair)

        pair.run(watch)
        pair.settle()
        if next(told) <= moment:
            return
    pytest.fail(f"more than {MAX_MOMENTS} moments")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_at_every_frame(pair: Pair, side: str, act: str) -> None:
    node = pair.prefill if side == "prefill" else pair.decode
    for moment in range(1, MAX_MOMENTS):
        node.frames.on(moment, lambda: ACTS[act](pair))
        pair.run()
        pair.settle()
        if node.frames.count < moment:
            return
    pytest.fail(f"more than {MAX_MOMENTS} moments")


@pytest.mark.parametrize("repeat", [Repeat.ONCE, Repeat.ALWAYS])
@pytest.mark.parametrize("action", [Action.CLOSE, Action.DROP, Action.CORRUPT])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_fault_at_every_frame(pair: Pair, side: str, action: Action, repeat: Repeat) -> None:
    node = pair.prefill if side == "prefill" else pair.decode
    for moment in range(1, MAX_MOMENTS):
        node.frames.arm(Fault(Place.TRANSFER, action, moment, repeat))
        pair.run()
        num_frames = node.frames.count
        node.frames.arm()
        pair.settle()
        if num_frames < moment:
            return
    pytest.fail(f"more than {MAX_MOMENTS} moments")


@pytest.mark.parametrize("action", [Action.RAISE, Action.NAN])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_fault_in_every_step(pair: Pair, side: str, action: Action) -> None:
    node = pair.prefill if side == "prefill" else pair.decode
    for moment in range(1, MAX_MOMENTS):
        node.steps.arm(Fault(Place.STEP, action, moment))
        pair.run()
        num_steps = node.steps.count
        node.steps.arm()
        pair.settle()
        if num_steps < moment:
            return
    pytest.fail(f"more than {MAX_MOMENTS} moments")
