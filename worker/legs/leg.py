"""A leg and its sequences, as the engine keeps them.

    QUEUED   --blocks reserved, to compute-->            RUNNING
    QUEUED   --blocks reserved, KV comes from a peer-->  PULLING     --record verified-->  RUNNING
    RUNNING  --prefill done, stage PREFILL-->            HANDED_OFF  --acknowledged-->     ENDED
    HANDED_OFF --told to decode here-->                  RUNNING
    any      --finished, cancelled, failed-->            ENDED

A sequence that was preempted waits again without leaving RUNNING. Only the engine thread writes any of this.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kvcache.block_pool import CacheEvent
from kvcache.transfer.export import Export
from kvcache.transfer.pull import Pull
from protos.block_hash import extend_chain, root_hash
from protos.sampling_messages import FinishReason
from protos.session_messages import LegUpdate, Stage, Start
from worker.engines.torch.grammar import GrammarMatcher


class Phase(Enum):
    QUEUED = "queued"
    PULLING = "pulling"
    RUNNING = "running"
    HANDED_OFF = "handed_off"
    ENDED = "ended"


class Link(Protocol):
    """The way back to a master. The engine thread calls it; neither method blocks."""

    def deliver(self, updates: Items[LegUpdate], cache_events: Items[CacheEvent]) -> None: ...

    def deliver_cache_snapshot(self, hashes: Items[bytes]) -> None: ...


class Sequence:
    """One sequence: its tokens, and the blocks that hold their KV."""

    def __init__(self, leg: "Leg", index: int) -> None:
        self.leg = leg
        self.index = index
        self.token_ids: list[int] = [*leg.start.prompt_ids, *leg.start.output_ids]
        self.output_ids: list[int] = list(leg.start.output_ids)  # those after the prompt
        self.blocks: list[int] = []  # one reference on each, owned by the scheduler
        self.num_computed = 0  # leading tokens whose KV is in `blocks`
        self.num_committed = 0  # leading blocks that the prefix cache knows
        self.hashes: list[bytes] = []  # of the full blocks, as far as needed so far
        self.finish_reason: FinishReason | None = None
        self.grammar: GrammarMatcher | None = None  # what the output must match

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.output_ids)

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: lower priority number, then earlier arrival, then lower index. No two are equal."""
        return (self.leg.start.priority, self.leg.number, self.index)

    @property
    def num_slots(self) -> int:
        """How many sequences come to run when this one does."""
        return 1 if self.leg.is_prefilled else len(self.leg.unfinished)

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.output_ids.append(token_id)

    def chain(self, num_tokens: int, block_size: int) -> list[bytes]:
        """The hashes of the full blocks among the first `num_tokens` tokens."""
        extend_chain(self.hashes, self.leg.root, self.token_ids, num_tokens, block_size)
        return self.hashes[: num_tokens // block_size]


@dataclass(eq=False)
class Leg:
    """One try of a request on this worker."""

    start: Start
    link: Link
    number: int  # of arrival on this worker
    model: str
    arrived_s: float  # time.monotonic()
    stage: Stage = field(init=False)  # PREFILL may turn to WHOLE: decode here
    phase: Phase = Phase.QUEUED
    sequences: list[Sequence] = field(init=False)
    root: bytes = field(init=False)  # parent of the first block's hash
    admitted_s: float = 0.0
    is_prefilled: bool = False
    num_cached: int = 0  # tokens found in the prefix cache when first admitted
    num_published: int = 0  # leading blocks given to the export
    num_prompt_logprobs: int = 0  # entries reported so far
    export: Export | None = None  # from its opening until it is released
    pull: Pull | None = None  # while it runs

    def __post_init__(self) -> None:
        self.stage = self.start.stage
        self.root = root_hash(self.model, self.start.cache_salt)
        self.sequences = [Sequence(self, index) for index in self.start.sequences]

    @property
    def leader(self) -> Sequence:
        """The sequence that computes (or pulls) what all of them share."""
        return self.sequences[0]

    @property
    def unfinished(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def deadline_s(self) -> float:
        return self.arrived_s + self.start.time_limit_s

    @property
    def is_pull(self) -> bool:
        """Whether its KV comes from a peer and has not arrived."""
        return self.stage is Stage.DECODE and not self.is_prefilled

    @property
    def wants_prompt_logprobs(self) -> bool:
        if self.start.sampling.prompt_logprobs is None or self.stage is Stage.DECODE:
            return False
        return self.num_prompt_logprobs < len(self.start.prompt_ids)

    @property
    def can_hand_off(self) -> bool:
        """Whether there is anything to decode after the first token."""
        return self.stage is Stage.PREFILL and self.start.sampling.max_tokens - len(self.start.output_ids) > 1
