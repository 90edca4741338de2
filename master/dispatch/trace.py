"""What a request's attempts did, for its usage and timeline."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from master.output import Timeline
from protos.sampling_messages import TokenLogprobs
from protos.session_messages import LegUpdate, Stage, Transferred


@dataclass(slots=True)
class RequestTrace:
    """Written by the attempts. Durations are those of the latest attempt, `cached_tokens` the first one's."""

    arrived_s: float
    attempts: int = 0
    cached_tokens: int | None = None
    queue_s: float = 0.0
    prefill_s: float = 0.0
    transferred: Transferred | None = None
    first_token_s: float | None = None  # since arrival
    prefill_instance: str = ""
    decode_instance: str = ""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_prompt_logprobs_taken: int = 0

    def begin_attempt(self) -> None:
        self.attempts += 1
        self.transferred = None
        self.decode_instance = ""

    def count(self, worker: str, stage: Stage, update: LegUpdate) -> None:
        if update.started is not None and stage is not Stage.DECODE:
            if self.cached_tokens is None:
                self.cached_tokens = update.started.cached_tokens
            self.queue_s = update.started.queue_s
            self.prefill_instance = worker
        if update.prefilled is not None:
            self.prefill_s = update.prefilled.duration_s
        if update.transferred is not None:
            self.transferred = update.transferred
            self.decode_instance = worker
        if update.deltas and self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.arrived_s

    def add_prompt_logprobs(self, position: int, entries: Sequence[TokenLogprobs]) -> None:
        """`entries` are of the prompt tokens from `position` on; an attempt before may have reported some of them."""
        self.prompt_logprobs += entries[len(self.prompt_logprobs) - position :]

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those that came since the last call."""
        new = tuple(self.prompt_logprobs[self.num_prompt_logprobs_taken :])
        self.num_prompt_logprobs_taken += len(new)
        return new

    def timeline(self) -> Timeline:
        total_s = time.monotonic() - self.arrived_s
        first_token_s = self.first_token_s if self.first_token_s is not None else total_s
        moved = self.transferred or Transferred("", 0, 0, 0, 0.0, 0.0)
        return Timeline(
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            transfer_s=moved.duration_s,
            transfer_wait_s=moved.wait_s,
            first_token_s=first_token_s,
            decode_s=total_s - first_token_s,
            total_s=total_s,
            transport=moved.transport,
            transfer_bytes=moved.num_bytes,
            blocks_sent=moved.blocks_sent,
            blocks_skipped=moved.blocks_skipped,
            prefill_instance=self.prefill_instance,
            decode_instance=self.decode_instance or self.prefill_instance,
            attempts=self.attempts,
        )
