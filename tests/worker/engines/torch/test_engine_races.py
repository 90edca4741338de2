"""Many requests over two small engines, with cancels and take-backs at whatever moment: all ends are clean."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from protos.sampling_messages import SamplingParams
from protos.session_messages import ErrorCode, LegUpdate, Stage, Start
from tests.worker.engines.torch.engine_rig import Node
from tests.worker.engines.torch.reference import prompt

NUM_REQUESTS = 40
EXPECTED = (ErrorCode.TRANSFER_FAILED, ErrorCode.RESOURCE_EXHAUSTED)  # the latter from a full decode worker
SEQUENCES = (0, 1)
SAMPLING = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
PROMPTS = [prompt(length, 40) for length in (1, 15, 16, 17, 33, 60)]

Act = Callable[[Node, Start], None]


def cancel(node: Node, start: Start) -> None:
    node.cancel(start)


def cancel_leader(node: Node, start: Start) -> None:
    node.cancel(start, 0)


def decode_here(node: Node, start: Start) -> None:
    node.legs.decode_here(node.master, start.leg)


def decode_here_and_cancel(node: Node, start: Start) -> None:
    decode_here(node, start)
    cancel(node, start)


class Disturbed:
    """Does something to some legs of one node, each when a number of updates of it have come."""

    def __init__(self, node: Node, choice: random.Random, acts: list[Act]) -> None:
        self.starts: dict[int, Start] = {}
        self._node = node
        self._choice = choice
        self._acts = acts
        self._due: dict[int, tuple[int, Act]] = {}

    def add(self, start: Start) -> None:
        self.starts[start.leg] = start
        if self._choice.random() < 0.6:
            self._due[start.leg] = (self._choice.randint(0, 6), self._choice.choice(self._acts))
            self.count(start.leg)

    def count(self, leg: int) -> None:
        if leg not in self._due:
            return
        left, act = self._due.pop(leg)
        if left == 0 and self._node.master.outcome(leg).failure is None:
            act(self._node, self.starts[leg])
        elif left > 0:
            self._due[leg] = (left - 1, act)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("transport", ["vm_read", "tcp"])
def test_whatever_is_done_to_legs_nothing_wrong_is_told_and_nothing_is_left(
    seed: int, transport: str, tiny_llama: Path, llama: Node
) -> None:
    choice = random.Random(seed)
    expected = {ids: llama.run(ids, SAMPLING, sequences=SEQUENCES).token_ids for ids in PROMPTS}
    # the lease is for hand-offs whose decode side is cancelled alone, which no master does
    small = {
        "num_blocks": 16,
        "max_tokens_per_step": 20,
        "max_num_seqs": 6,
        "kv_lease_s": 2.0,
        "max_queued_pulls": NUM_REQUESTS,
    }
    with Node(tiny_llama, **small) as prefill, Node(tiny_llama, **small, transports=(transport,)) as decode:
        firsts = Disturbed(prefill, choice, [cancel, cancel_leader, decode_here, decode_here_and_cancel])
        seconds = Disturbed(decode, choice, [cancel, cancel_leader])

        def on_prefill(update: LegUpdate) -> None:
            if update.started is not None and update.started.kv_handle is not None:
                begin_decode(prefill_starts[update.leg], update.started.kv_handle)
            firsts.count(update.leg)

        def begin_decode(first: Start, source: bytes) -> None:
            seconds.add(decode.start(first.prompt_ids, SAMPLING, Stage.DECODE, sequences=SEQUENCES, kv_handle=source))

        # known before the engine can tell of them
        prefill_starts = {
            number: Start(number, "r", Stage.PREFILL, choice.choice(PROMPTS), SAMPLING, sequences=SEQUENCES)
            for number in range(1, NUM_REQUESTS + 1)
        }
        prefill.master.on_update(on_prefill)
        decode.master.on_update(lambda update: seconds.count(update.leg))
        for start in prefill_starts.values():
            prefill.legs.begin(prefill.master, start)
            firsts.add(start)
        prefill.quiesce()
        decode.quiesce()
        num_finished = 0
        for node, starts in ((prefill, prefill_starts), (decode, seconds.starts)):
            assert node.master.problem is None, node.master.problem
            for start in starts.values():
                outcome = node.master.outcome(start.leg)
                assert outcome.ended
                assert outcome.failure is None or outcome.failure.code in EXPECTED, outcome.failure
                for index, token_ids in outcome.token_ids.items():
                    assert token_ids == expected[start.prompt_ids][index][: len(token_ids)]
                num_finished += len(outcome.finish_reasons)
        assert num_finished > NUM_REQUESTS / 4
