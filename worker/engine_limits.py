"""What an engine can take, and the refusal of what it can't."""

from dataclasses import dataclass

from protos.messages import ErrorCode, Failure, Start


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Lengths in tokens; `num_blocks` of `block_size` tokens hold all KV."""

    max_context: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_queued: int

    def refusal(self, start: Start) -> Failure | None:
        """Why this attempt could never run here. The master checked most of it; a worker trusts nobody."""
        num_tokens = len(start.prompt_ids) + len(start.output_ids)
        if not start.prompt_ids:
            return _invalid("prompt_ids: empty")
        if not start.sequences or len(set(start.sequences)) < len(start.sequences):
            return _invalid(f"sequences: {list(start.sequences)} are not distinct indexes")
        if len(start.sequences) > self.max_num_seqs:
            return _invalid(f"sequences: {len(start.sequences)}, this worker runs at most {self.max_num_seqs}")
        if max(start.prompt_ids) >= self.vocab_size or max(start.output_ids, default=0) >= self.vocab_size:
            return _invalid(f"token ids: above the vocabulary of {self.vocab_size}")
        if start.sampling.max_tokens <= len(start.output_ids):
            return _invalid(f"max_tokens: {start.sampling.max_tokens}, already emitted {len(start.output_ids)}")
        longest = len(start.prompt_ids) + start.sampling.max_tokens
        if longest > self.max_context:
            return _invalid(f"prompt and max_tokens: {longest} tokens, the context holds {self.max_context}")
        # The last token emitted needs no KV.
        needed = -(-max(longest - 1, num_tokens) // self.block_size)
        if needed > self.num_blocks:
            return _invalid(f"prompt and max_tokens: {needed} blocks of KV, this worker has {self.num_blocks}")
        return None


def _invalid(message: str) -> Failure:
    return Failure(ErrorCode.INVALID_ARGUMENT, message)
