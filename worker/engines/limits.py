"""What an engine can take, and the refusal of what it can't."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protos.sampling_messages import SAMPLING_OPTIONS, SamplingParams
from protos.session_messages import ErrorCode, Failure, Stage, Start

MAX_SEQUENCES = 1024  # of one leg


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Lengths in tokens; `num_blocks` of `block_size` tokens hold all KV."""

    max_context: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_num_seqs: int

    def refusal(self, start: Start) -> Failure | None:
        """Why this leg could never run here. The master checked most of it; a worker trusts nobody.

        INVALID_ARGUMENT for what makes no sense anywhere, RESOURCE_EXHAUSTED for what a larger worker could take.
        """
        if start.stage is Stage.DECODE and start.kv_handle is None:
            return _invalid("kv_handle: unset, there is nowhere to pull from")
        if not start.prompt_ids:
            return _invalid("prompt_ids: empty")
        if math.isnan(start.time_limit_s):
            return _invalid("time_limit_s: not a number")
        if not 0 <= start.age_s < math.inf:
            return _invalid(f"age_s: {start.age_s} is out of range")
        if not start.sequences or len(set(start.sequences)) < len(start.sequences):
            return _invalid(f"sequences: {list(start.sequences)} are not distinct indexes")
        if len(start.sequences) > MAX_SEQUENCES:
            return _invalid(f"sequences: {len(start.sequences)}, at most {MAX_SEQUENCES}")
        for name, token_ids in (("prompt_ids", start.prompt_ids), ("output_ids", start.output_ids)):
            if not self._are_known(token_ids):
                return _invalid(f"{name}: outside the vocabulary of {self.vocab_size}")
        if start.sampling.max_tokens <= len(start.output_ids):
            return _invalid(f"max_tokens: {start.sampling.max_tokens}, already emitted {len(start.output_ids)}")
        return self._sampling_refusal(start.sampling) or self._size_refusal(start, start.stage)

    def decode_refusal(self, start: Start) -> Failure | None:
        """Why what was begun as `start` can't be decoded to its end here."""
        return self._size_refusal(start, Stage.WHOLE)

    def _size_refusal(self, start: Start, stage: Stage) -> Failure | None:
        """A worker that only prefills computes one token, whatever may follow on another."""
        num_tokens = len(start.prompt_ids) + len(start.output_ids)
        if stage is Stage.PREFILL:
            what, longest = "prompt", num_tokens + 1
        else:
            what, longest = "prompt and max_tokens", len(start.prompt_ids) + start.sampling.max_tokens
        if longest > self.max_context:
            return _too_large(f"{what}: {longest} tokens, this worker's context holds {self.max_context}")
        # The last token emitted needs no KV.
        needed = -(-(longest - 1) // self.block_size)
        if needed > self.num_blocks:
            return _too_large(f"{what}: {needed} blocks of KV, this worker has {self.num_blocks}")
        return None

    def _sampling_refusal(self, sampling: SamplingParams) -> Failure | None:
        """What would break the step it is sampled in, and so the work of others, or make no distribution."""
        for name, option in SAMPLING_OPTIONS.items():
            value = getattr(sampling, name, None)
            if value is None or option.allowed is None or name == "stop_token_ids":
                continue  # any number of ids may end a sequence
            if problem := option.allowed.problem(value):
                return _invalid(f"{name}: {problem}")
        for name, token_ids in (
            ("logit_bias", tuple(sampling.logit_bias)),
            *(("bad_words_ids", word) for word in sampling.bad_words_ids),
        ):
            if not self._are_known(token_ids):
                return _invalid(f"{name}: outside the vocabulary of {self.vocab_size}")
        if () in sampling.bad_words_ids:
            return _invalid("bad_words_ids: a word has no tokens")
        return None

    def _are_known(self, token_ids: Sequence[int]) -> bool:
        return not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.vocab_size)


def _invalid(message: str) -> Failure:
    return Failure(ErrorCode.INVALID_ARGUMENT, message)


def _too_large(message: str) -> Failure:
    return Failure(ErrorCode.RESOURCE_EXHAUSTED, message)
