"""Routing policies: which of the workers that are able takes a request's next stage.

A policy is one pure function and a line in POLICIES. It is asked for the worker that computes the prompt (stage
PREFILL), and later for the one that decodes (DECODE). All candidates are able and allowed, and there is at least one.
What it may know of them is in `WorkerView`. In a large fleet only those of the lowest ranks are candidates, and those
that hold most of the prompt; of one rank those that rested longest come first.
"""

import math
from collections.abc import Callable, Sequence

from master.routing.views import PromptView, WorkerView
from protos.session_messages import PrefillSpeed, Role, Stage

Policy = Callable[[Sequence[WorkerView], PromptView, Stage], WorkerView]
Rank = Callable[[WorkerView, Stage], float]

ASSUMED_SPEED = PrefillSpeed(step_s=0.0, token_s=0.001)  # while no worker has computed any
# What a sequence that decodes still costs its worker, in tokens computed; nobody knows how long an answer gets.
ASSUMED_OUTPUT_TOKENS = 64
# Figures are measured: waits that differ by less are the same, and then the worker that rested longest is taken.
SAME_SHARE = 0.25
SAME_S = 0.001


def soonest(candidates: Sequence[WorkerView], prompt: PromptView, stage: Stage) -> WorkerView:
    """The prompt goes where the first token is expected soonest, decoding where the fewest sequences run.

    A cached prefix counts as tokens that need no computing, so it attracts its like until waiting costs more.
    """
    missing = {worker.name: prompt.num_tokens - prompt.cached_tokens(worker) for worker in candidates}
    roomy = [worker for worker in candidates if _has_room(worker, prompt, missing[worker.name])] or candidates
    if stage is Stage.DECODE:
        return min(roomy, key=lambda w: (w.running_sequences, w.blocks_for(missing[w.name]), w.last_used, w.name))
    # A new worker is taken to be as fast as the others: taken for slow, it would never get to show that it is not.
    known = [worker.prefill_speed for worker in roomy if worker.prefill_speed is not None]
    typical = min(known, key=lambda speed: speed.token_s, default=ASSUMED_SPEED)
    output_tokens = min(prompt.max_total_tokens - prompt.num_tokens, ASSUMED_OUTPUT_TOKENS)
    waits_s = [_wait_s(worker, missing[worker.name], output_tokens, typical) for worker in roomy]
    same_s = min(waits_s) * (1 + SAME_SHARE) + SAME_S
    return _longest_rested([worker for worker, wait_s in zip(roomy, waits_s, strict=True) if wait_s <= same_s])


def soonest_rank(worker: WorkerView, stage: Stage) -> float:
    """Waits that are the same by `soonest` have one rank; a worker whose speed is not known counts as fast."""
    if stage is Stage.DECODE:
        return worker.running_sequences
    wait_s = _wait_s(worker, 0, ASSUMED_OUTPUT_TOKENS, PrefillSpeed(0.0, 0.0))
    return int(math.log(wait_s + SAME_S) / math.log(1 + SAME_SHARE))


def round_robin(candidates: Sequence[WorkerView], prompt: PromptView, stage: Stage) -> WorkerView:
    """Each in turn, whatever is known of them."""
    return _longest_rested(candidates)


def no_rank(worker: WorkerView, stage: Stage) -> float:
    return 0.0


POLICIES: dict[str, Policy] = {"soonest": soonest, "round_robin": round_robin}
RANKS: dict[Policy, Rank] = {soonest: soonest_rank, round_robin: no_rank}


def _longest_rested(workers: Sequence[WorkerView]) -> WorkerView:
    return min(workers, key=lambda worker: (worker.last_used, worker.name))


def _wait_s(worker: WorkerView, missing_tokens: int, output_tokens: int, typical: PrefillSpeed) -> float:
    """How long until the prompt is computed there, and what its decoding costs among those that decode already."""
    speed = worker.prefill_speed or typical
    num_tokens = worker.queued_prefill_tokens + missing_tokens
    if worker.role is not Role.PREFILL:
        num_tokens += worker.running_sequences * output_tokens
    return speed.step_s * (worker.queued_requests + 1) + speed.token_s * num_tokens


def _has_room(worker: WorkerView, prompt: PromptView, missing_tokens: int) -> bool:
    """Whether the prompt could begin at once."""
    has_slots = worker.running_sequences + prompt.num_sequences <= worker.max_num_seqs
    return has_slots and worker.blocks_for(missing_tokens) <= worker.available_blocks
