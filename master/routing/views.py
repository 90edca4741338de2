"""What the router knows when it chooses: of the workers, and of the prompt."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from master.routing.prefix_index import PrefixIndex
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role

FIRST_BLOCKS = 16  # hashed of any prompt; four times as many again for as long as somebody holds the last of them
MAX_TOKENS_IN_LOOP = 8192  # hashing that many takes less than a millisecond


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

    @property
    def kind(self) -> tuple[str, int]:
        """Workers of one kind name the blocks of a prompt alike."""
        return self.model, self.block_size

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
        held = worker.cached_blocks
        if not held:
            return 0
        chain = self._chain(worker, lambda key: key in held)
        num_blocks = 0 if not chain or chain[0] not in held else bisect_left(chain, True, key=lambda k: k not in held)
        return min(num_blocks * worker.block_size, self.num_tokens - 1)

    def deepest(self, prefixes: PrefixIndex, worker: WorkerView, limit: int) -> list[str]:
        """The workers of one kind with `worker` that hold most of the prompt."""
        return prefixes.deepest(self._chain(worker, prefixes.__contains__), limit) if len(prefixes) else []

    def is_work(self, prefixes: PrefixIndex, worker: WorkerView) -> bool:
        """Whether hashing what may be held of it takes so long that a thread should."""
        chain = self._chains.get(worker.kind, ())
        num_left = self.num_tokens - len(chain) * worker.block_size
        if num_left <= MAX_TOKENS_IN_LOOP or not len(prefixes):
            return False
        return self._extended(worker, FIRST_BLOCKS)[-1] in prefixes

    def hash_all(self, worker: WorkerView) -> None:
        """As workers of its kind do. It may run in a thread, while nobody else uses this prompt."""
        self._extended(worker, self.num_tokens)

    def _chain(self, worker: WorkerView, is_held: Callable[[bytes], bool]) -> Sequence[bytes]:
        """Hashed once for each kind of worker, and not much further than somebody holds it."""
        num_blocks = FIRST_BLOCKS
        chain = self._extended(worker, num_blocks)
        while len(chain) < self.num_tokens // worker.block_size and is_held(chain[-1]):
            num_blocks = max(num_blocks * 4, len(chain))
            chain = self._extended(worker, num_blocks)
        return chain

    def _extended(self, worker: WorkerView, num_blocks: int) -> list[bytes]:
        chain = self._chains.get(worker.kind)
        if chain is None:
            chain = self._chains[worker.kind] = []
        if len(chain) < min(num_blocks, self.num_tokens // worker.block_size):
            num_tokens = min(num_blocks * worker.block_size, self.num_tokens)
            root = root_hash(worker.model, self._cache_salt)
            extend_chain(chain, root, self._token_ids, num_tokens, worker.block_size)
        return chain
