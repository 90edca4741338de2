"""The sequences of a run, as the torch engine keeps them.

    QUEUED      --blocks reserved, to compute-->            PREFILLING  --prompt computed-->      DECODING
    QUEUED      --blocks reserved, KV comes from a peer-->  PULLING     --record verified-->      DECODING
    PREFILLING  --prompt computed, KV on offer-->           HANDED_OFF  --told to decode here-->  DECODING
    any         --finished, aborted, failed, KV taken-->    ENDED

A sequence that was preempted waits again, and its group's phase stays. Only the engine thread writes any of this.
"""

from enum import Enum

from kvcache.transfer.export import Export
from kvcache.transfer.pull import Pull
from protos.block_hash import extend_chain
from protos.sampling_messages import FinishReason
from protos.session_messages import Stage
from worker.engines.compute_engine import Run
from worker.engines.torch.grammar import GrammarMatcher
from worker.engines.torch.sampling.seen_tokens import SeenTokens


class Phase(Enum):
    QUEUED = "queued"
    PREFILLING = "prefilling"
    PULLING = "pulling"
    HANDED_OFF = "handed_off"
    DECODING = "decoding"
    ENDED = "ended"


class Sequence:
    """One sequence: its tokens, and the blocks that hold their KV."""

    def __init__(self, group: "SequenceGroup", index: int) -> None:
        self.group = group
        self.index = index
        self.token_ids: list[int] = [*group.run.prompt_ids, *group.run.output_ids]
        self.output_ids: list[int] = list(group.run.output_ids)  # those after the prompt
        self.blocks: list[int] = []  # one reference on each, owned by the scheduler
        self.num_computed = 0  # leading tokens whose KV is in `blocks`
        self.num_committed = 0  # leading blocks that the prefix cache knows
        self.hashes: list[bytes] = []  # of the full blocks, as far as needed so far
        self.num_overtaken = 0  # sequences behind it that got blocks while there were too few for it
        self.finish_reason: FinishReason | None = None
        self.grammar: GrammarMatcher | None = None  # what the output must match
        self.seen = SeenTokens(group.run.prompt_ids)

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
    def order(self) -> tuple[int, float, int, int]:
        """Who goes first: lower priority number, then the older request, then lower index. No two are equal."""
        run = self.group.run
        return (run.priority, run.requested_s, run.number, self.index)

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.output_ids.append(token_id)

    def reason_to_finish(self) -> FinishReason | None:
        """What its newest token, among its output, means for it."""
        params = self.group.run.sampling
        if self.output_ids[-1] in params.stop_token_ids:
            return FinishReason.STOP
        if self.grammar is not None and self.grammar.is_complete(self.output_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= params.max_tokens else None

    def chain(self, num_tokens: int, block_size: int) -> list[bytes]:
        """The hashes of the full blocks among the first `num_tokens` tokens."""
        extend_chain(self.hashes, self.group.run.root, self.token_ids, num_tokens, block_size)
        return self.hashes[: num_tokens // block_size]


class SequenceGroup:
    """The sequences of one run: they share the KV of the prompt."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stage = run.stage  # PREFILL turns to WHOLE when the KV is not to be handed off any more
        self.phase = Phase.QUEUED
        self.sequences = [Sequence(self, index) for index in run.sequences]
        self.num_cached = 0  # tokens found in the prefix cache when first admitted
        self.num_published = 0  # leading blocks given to the export
        self.num_prompt_logprobs = 0  # entries reported so far
        self.export: Export | None = None  # from its opening until it is released
        self.pull: Pull | None = None  # while it runs

    @property
    def leader(self) -> Sequence:
        """The sequence that computes (or pulls) what all of them share."""
        return self.sequences[0]

    @property
    def unfinished(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def is_prefilled(self) -> bool:
        """Whether the shared KV is complete, so that every sequence goes its own way."""
        return self.phase in (Phase.HANDED_OFF, Phase.DECODING)

    @property
    def is_pull(self) -> bool:
        """Whether its KV comes from a peer and has not arrived."""
        return self.stage is Stage.DECODE and not self.is_prefilled

    @property
    def wants_prompt_logprobs(self) -> bool:
        if self.run.sampling.prompt_logprobs is None or self.stage is Stage.DECODE:
            return False
        return self.num_prompt_logprobs < len(self.run.prompt_ids)

    @property
    def can_hand_off(self) -> bool:
        """Whether there is anything to decode after the first token."""
        return self.stage is Stage.PREFILL and self.run.num_left > 1
