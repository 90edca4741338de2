"""Which workers may serve an attempt: pure functions of what is known of them.

The router says who is able; among those a policy chooses. Decode is chosen later than prefill, when that has begun, on
fresher figures. A worker that failed this request before (`avoided`) computes its prompt only if there is no other.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from master.routing.policies import Policy, soonest
from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage

_Pairing = tuple[str, bytes, int]  # what must be equal for two workers to hand KV over


@dataclass(frozen=True, slots=True)
class Route:
    """Where an attempt begins: `stage` PREFILL needs a decode worker later, WHOLE does not."""

    worker: WorkerView
    stage: Stage


def pick_first(
    workers: Sequence[WorkerView], prompt: PromptView, avoided: Collection[str], policy: Policy = soonest
) -> Route | None:
    """The worker that computes the prompt; None when no worker may, or none is large enough."""
    pairs = {_pairing(worker) for worker in workers if _takes_over(worker) and holds_all(worker, prompt)}
    able = [worker for worker in workers if _may_begin(worker) and _can_serve(worker, pairs, prompt)]
    if not able:
        return None
    worker = policy(_wanted(able, avoided), prompt, Stage.PREFILL)
    return Route(worker, Stage.PREFILL if worker.role is Role.PREFILL else Stage.WHOLE)


def pick_decode(
    workers: Sequence[WorkerView],
    prefill: WorkerView,
    prompt: PromptView,
    unwanted: Collection[str],
    policy: Policy = soonest,
) -> WorkerView | None:
    """The worker that decodes what `prefill` computes; None when there is none that could hold it.

    An `unwanted` one is never taken: `prefill` can decode as well.
    """
    able = [
        worker
        for worker in workers
        if worker.name not in unwanted and can_take_over(worker, prefill) and holds_all(worker, prompt)
    ]
    candidates = [worker for worker in able if worker.role is Role.DECODE] or able
    return policy(candidates, prompt, Stage.DECODE) if candidates else None


def pick_last_resort(
    workers: Sequence[WorkerView], prompt: PromptView, avoided: Collection[str], policy: Policy = soonest
) -> Route | None:
    """Any worker, whatever its role, to go on with what has begun: every engine can compute any stage."""
    able = [worker for worker in workers if holds_all(worker, prompt)]
    return Route(policy(_wanted(able, avoided), prompt, Stage.DECODE), Stage.WHOLE) if able else None


def missing_route(workers: Sequence[WorkerView], *, any_role: bool = False) -> str | None:
    """Why no request could be served now; None when one could. With `any_role` every worker serves if need be."""
    if not workers:
        return "no worker is connected"
    if any_role or any(_may_begin(worker) and _has_partner(worker, workers) for worker in workers):
        return None
    if any(worker.role is Role.PREFILL for worker in workers):
        return "no DECODE or MIX worker is connected that could take over from the PREFILL workers"
    return "no PREFILL, MIX or DEFAULT worker is connected"


def holds_all(worker: WorkerView, prompt: PromptView) -> bool:
    """Whether prompt and completion fit; the last token emitted needs no KV."""
    return prompt.max_total_tokens <= worker.max_context and _fits(worker, prompt.max_total_tokens - 1, prompt)


def largest_room(workers: Sequence[WorkerView]) -> int | None:
    """The longest prompt and completion together that any worker can bring to its end; None without one.

    A prefill worker ends nothing, and the last token emitted needs no KV.
    """
    ends = [worker for worker in workers if worker.role is not Role.PREFILL]
    return max((min(w.max_context, w.num_blocks * w.block_size + 1) for w in ends), default=None)


def most_sequences(workers: Sequence[WorkerView]) -> int | None:
    """The most sequences that any worker can bring to their end at once; None without one."""
    return max((worker.max_num_seqs for worker in workers if worker.role is not Role.PREFILL), default=None)


def may_begin(worker: WorkerView, prompt: PromptView) -> bool:
    """Whether the worker could compute the prompt, and bring it to its end if that is its role."""
    if worker.role is Role.PREFILL:
        return _fits(worker, prompt.num_tokens, prompt)
    return _may_begin(worker) and holds_all(worker, prompt)


def can_take_over(worker: WorkerView, prefill: WorkerView) -> bool:
    """Whether the worker could pull what `prefill` computes."""
    return _takes_over(worker) and worker.name != prefill.name and _pairing(worker) == _pairing(prefill)


def _may_begin(worker: WorkerView) -> bool:
    return worker.role in (Role.PREFILL, Role.MIX, Role.DEFAULT)


def _has_partner(worker: WorkerView, workers: Sequence[WorkerView]) -> bool:
    return worker.role is not Role.PREFILL or any(can_take_over(other, worker) for other in workers)


def _can_serve(worker: WorkerView, pairs: Collection[_Pairing], prompt: PromptView) -> bool:
    """Whether the worker, together with one that takes over if it needs one, is large enough.

    `pairs`: with what such workers can be paired that are large enough to take over.
    """
    if worker.role is not Role.PREFILL:
        return holds_all(worker, prompt)
    return _pairing(worker) in pairs and _fits(worker, prompt.num_tokens, prompt)


def _takes_over(worker: WorkerView) -> bool:
    return worker.role in (Role.DECODE, Role.MIX)


def _pairing(worker: WorkerView) -> _Pairing:
    return (worker.model, worker.layout_fingerprint, worker.transfer_protocol)


def _fits(worker: WorkerView, num_tokens: int, prompt: PromptView) -> bool:
    has_blocks = worker.blocks_for(num_tokens) <= worker.num_blocks
    return has_blocks and num_tokens < worker.max_context and prompt.num_sequences <= worker.max_num_seqs


def _wanted(able: Sequence[WorkerView], avoided: Collection[str]) -> Sequence[WorkerView]:
    return [worker for worker in able if worker.name not in avoided] or able
