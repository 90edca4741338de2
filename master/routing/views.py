"""What the router knows when it chooses: of the workers, and of the prompt."""

import bisect
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from protos.block_hash import extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A connected worker that takes work, and every figure that routing goes by.

    Load includes what this master sent since the worker's last report.
    """

    name: str
    role: Role
    model: str
    transfer_protocol: int
    layout_fingerprint: bytes
    block_size: int
    num_blocks: int
    max_context: int
    max_num_seqs: int
    queued_requests: int
    queued_prefill_tokens: int
    running_sequences: int
    available_blocks: int
    prefill_speed: PrefillSpeed | None  # None: not known yet
    cached_blocks: AbstractSet[bytes]
    last_used: int  # grows with each leg that this master begins anywhere; 0: never

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


class PromptView:
    """What matters of the tokens an attempt begins with, and how many sequences of what length may come of it."""

    def __init__(
        self, token_ids: Sequence[int], max_total_tokens: int, cache_salt: str, num_sequences: int = 1
    ) -> None:
        self.num_sequences = num_sequences
        self.num_tokens = len(token_ids)
        self.max_total_tokens = max_total_tokens
        self._token_ids = token_ids
        self._cache_salt = cache_salt
        self._chains: dict[tuple[str, int], list[bytes]] = {}
        self._cached: dict[str, tuple[WorkerView, int]] = {}  # what is known of the latest view of each worker

    def cached_tokens(self, worker: WorkerView) -> int:
        """How many leading tokens the worker holds in full blocks, less the last token: it is always computed."""
        known = self._cached.get(worker.name)
        if known is None or known[0] is not worker:
            known = self._cached[worker.name] = (worker, self._count_cached(worker))
        return known[1]

    def _count_cached(self, worker: WorkerView) -> int:
        """A pool evicts tails before heads, so the end of a prefix is found by halving."""
        held, chain = worker.cached_blocks, self._chain(worker.model, worker.block_size)
        if not chain or chain[0] not in held:
            return 0
        num_blocks = bisect.bisect_left(range(len(chain)), True, key=lambda place: chain[place] not in held)
        return min(num_blocks * worker.block_size, self.num_tokens - 1)

    def _chain(self, model: str, block_size: int) -> Sequence[bytes]:
        """Hashed once for each kind of worker, and only if somebody asks."""
        chain = self._chains.get((model, block_size))
        if chain is None:
            chain = self._chains[model, block_size] = []
            root = root_hash(model, self._cache_salt)
            extend_chain(chain, root, self._token_ids, self.num_tokens, block_size)
        return chain
