"""What routing is told of a worker: its own figures, and what this master sent since they were reported."""

from collections.abc import Set as AbstractSet

from master.routing.views import WorkerView
from master.workers.leg import SessionLegs
from protos.session_messages import LoadReport, Welcome


def worker_view(
    name: str, welcome: Welcome, load: LoadReport, legs: SessionLegs, held: AbstractSet[bytes]
) -> WorkerView:
    prefilling = legs.prefilling
    unseen_blocks = sum(-(-len(leg.start.prompt_ids) // welcome.block_size) for leg in legs.unstarted)
    return WorkerView(
        name=name,
        role=load.role,
        model=welcome.model.identity,
        transfer_protocol=welcome.transfer_protocol,
        layout_fingerprint=welcome.layout_fingerprint,
        block_size=welcome.block_size,
        num_blocks=welcome.num_blocks,
        max_context=welcome.max_context,
        max_num_seqs=welcome.max_num_seqs,
        queued_requests=max(load.queued_requests, len(prefilling)),
        queued_prefill_tokens=max(load.queued_prefill_tokens, sum(leg.uncached_tokens for leg in prefilling)),
        running_sequences=max(load.running_sequences, legs.num_unfinished),
        available_blocks=load.available_blocks - unseen_blocks,
        prefill_speed=load.prefill,
        cached_blocks=held,
        last_used=legs.newest,
    )
