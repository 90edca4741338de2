"""What masters are told of the prefix cache: every change once, whenever they came."""

import threading
from pathlib import Path

from protos.session_messages import LegUpdate, Stage
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import (
    PATIENCE_S,
    ForeignPrefill,
    Master,
    Node,
)
from tests.worker.engines.torch.reference import prompt
from worker.engines.compute_engine import FirstToken, Run
from worker.legs.hand_off import make_record


def test_cache_changes_reach_every_master_and_a_late_one_gets_a_snapshot(tiny_llama: Path) -> None:
    with Node(tiny_llama, num_blocks=12) as node:
        node.run(prompt(100, 23))
        late = Master()
        node.legs.attach(late)
        node.run(prompt(100, 24))
        node.flush()
        assert node.master.cached == late.cached == set(node.pool.snapshot())
        assert (node.master.num_snapshots, late.num_snapshots) == (1, 1)
        node.legs.detach(late)


def test_a_master_that_attaches_while_blocks_are_stored_gets_them_once(decode: Node) -> None:
    """A pull's end and the new master reach the engine at the same time."""
    may_go_on, is_held = threading.Event(), threading.Event()

    def hold(_: LegUpdate) -> None:
        is_held.set()
        may_go_on.wait(PATIENCE_S)

    late = Master()
    with ForeignPrefill(decode) as foreign:
        export, source = foreign.open()
        pulling = decode.start(prompt(40), stage=Stage.DECODE, kv_handle=source)
        decode.master.wait(pulling.leg, lambda o: o.started is not None)
        decode.master.once(lambda update: True, hold)
        decode.start(prompt(5))
        assert is_held.wait(PATIENCE_S)
        export.publish([0, 1, 2])
        record = [FirstToken(0, 5, None)]
        export.seal(make_record(Run.of(pulling, 1, decode.engine.identity.model.identity, 0.0), record))
        eventually(lambda: len(decode.engine._commands) == 1, "the pull has ended")
        decode.legs.attach(late)
        may_go_on.set()
        decode.master.result(pulling)
    decode.flush()
    assert late.problem is None
    assert late.cached == decode.master.cached == set(decode.pool.snapshot())
    decode.legs.detach(late)


def test_more_changes_than_are_kept_are_told_by_a_snapshot(tiny_llama: Path) -> None:
    with Node(tiny_llama) as node:
        node.flush()
        node.pool._max_events = 2
        node.run(prompt(80))
        node.flush()
        assert node.master.num_snapshots == 2
        assert node.master.cached == set(node.pool.snapshot())
