"""Which workers serve an attempt: pure functions of what is known of them.

Prefill goes where the first token is expected soonest; decode is chosen later, when prefill has begun, on fresher
figures. A worker that failed this request before (`avoided`) computes its prompt only if there is no other.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage

ASSUMED_PREFILL_TOKENS_PER_S = 1000.0  # while no worker has computed any


@dataclass(frozen=True, slots=True)
class Route:
    """Where an attempt begins: `stage` PREFILL needs a decode worker later, WHOLE does not."""

    worker: WorkerView
    stage: Stage


def pick_first(workers: Sequence[WorkerView], prompt: PromptView, avoided: Collection[str]) -> Route | None:
    """The worker that computes the prompt; None when no worker may, or none is large enough."""
    candidates = [worker for worker in workers if _can_begin(worker, workers) and _can_hold(worker, prompt)]
    if not candidates:
        return None
    # A new worker is taken to be as fast as the others: taken for slow, it would never get to show that it is not.
    typical = max(worker.prefill_tokens_per_s for worker in candidates) or ASSUMED_PREFILL_TOKENS_PER_S
    worker = _best(candidates, avoided, lambda w: (_prefill_wait_s(w, prompt, typical), w.running_sequences, w.name))
    return Route(worker, Stage.PREFILL if worker.role is Role.PREFILL else Stage.WHOLE)


def pick_decode(
    workers: Sequence[WorkerView], prefill: WorkerView, prompt: PromptView, unwanted: Collection[str]
) -> WorkerView | None:
    """The worker that decodes what `prefill` computes; None when there is none that could hold it.

    An `unwanted` one is never taken: `prefill` can decode as well.
    """
    able = [
        worker
        for worker in workers
        if worker.name not in unwanted and _can_take_over(worker, prefill) and _can_hold(worker, prompt)
    ]
    candidates = [worker for worker in able if worker.role is Role.DECODE] or able
    if not candidates:
        return None

    def rank(worker: WorkerView) -> tuple[bool, int, int, str]:
        missing = worker.blocks_for(prompt.num_tokens - prompt.cached_tokens(worker))
        return (missing > worker.available_blocks, worker.running_sequences, missing, worker.name)

    return min(candidates, key=rank)


def pick_last_resort(workers: Sequence[WorkerView], prompt: PromptView, avoided: Collection[str]) -> Route | None:
    """Any worker, whatever its role, to go on with what has begun: every engine can compute any stage."""
    able = [worker for worker in workers if _fits(worker, prompt.max_total_tokens - 1, prompt)]
    if not able:
        return None
    return Route(_best(able, avoided, lambda w: (w.running_sequences, w.name)), Stage.WHOLE)


def missing_route(workers: Sequence[WorkerView]) -> str | None:
    """Why no request could be served now; None when one could."""
    if not workers:
        return "no worker is connected"
    if any(_can_begin(worker, workers) for worker in workers):
        return None
    if any(worker.role is Role.PREFILL for worker in workers):
        return "no DECODE or MIX worker is connected that could take over from the PREFILL workers"
    return "no PREFILL, MIX or DEFAULT worker is connected"


def _can_begin(worker: WorkerView, workers: Sequence[WorkerView]) -> bool:
    if worker.role is Role.PREFILL:
        return any(_can_take_over(other, worker) for other in workers)
    return worker.role in (Role.MIX, Role.DEFAULT)


def _can_take_over(worker: WorkerView, prefill: WorkerView) -> bool:
    return (
        worker.role in (Role.DECODE, Role.MIX)
        and worker.name != prefill.name
        and worker.layout_fingerprint == prefill.layout_fingerprint
    )


def _can_hold(worker: WorkerView, prompt: PromptView) -> bool:
    """A prefill worker needs to hold no more than the prompt; the last token emitted needs no KV anywhere."""
    num_tokens = prompt.num_tokens if worker.role is Role.PREFILL else prompt.max_total_tokens - 1
    return _fits(worker, num_tokens, prompt)


def _fits(worker: WorkerView, num_tokens: int, prompt: PromptView) -> bool:
    return worker.blocks_for(num_tokens) <= worker.num_blocks and prompt.max_total_tokens <= worker.max_context


def _prefill_wait_s(worker: WorkerView, prompt: PromptView, typical: float) -> float:
    rate = worker.prefill_tokens_per_s or typical
    return (worker.queued_prefill_tokens + prompt.num_tokens - prompt.cached_tokens(worker)) / rate


def _best(
    candidates: Sequence[WorkerView],
    avoided: Collection[str],
    rank: Callable[[WorkerView], tuple[float | str, ...]],
) -> WorkerView:
    return min(candidates, key=lambda worker: (worker.name in avoided, *rank(worker)))
