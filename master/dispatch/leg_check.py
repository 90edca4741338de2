"""What one leg has said so far, and whether it can be true."""

from protos.session_messages import LegUpdate, Stage, Start, TokenDelta


class ImpossibleUpdate(ValueError):
    """The worker said what no engine can have computed. The message says what."""


class LegCheck:
    """`has_generated`: the worker has shown that its engine works; a token that came with the KV shows nothing."""

    def __init__(self, start: Start, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size
        self._next_positions = dict.fromkeys(start.sequences, len(start.output_ids))
        self._finished: set[int] = set()
        self._num_prompt_logprobs = 0
        self.has_generated = False

    def add(self, update: LegUpdate) -> None:
        """Raises ImpossibleUpdate."""
        self._num_prompt_logprobs += len(update.prompt_logprobs)
        if self._num_prompt_logprobs > len(self._start.prompt_ids):
            raise ImpossibleUpdate(f"more log-probabilities than the prompt's {len(self._start.prompt_ids)} tokens")
        for delta in update.deltas:
            self._check(delta)
            self._next_positions[delta.sequence] = end = delta.position + len(delta.token_ids)
            if delta.finish_reason is not None:
                self._finished.add(delta.sequence)
            self.has_generated |= self._shows_work(end - len(self._start.output_ids))

    def _shows_work(self, num_tokens: int) -> bool:
        """The first token of a whole leg shows only that its engine can prefill, unless that was all."""
        if self._start.stage is Stage.WHOLE and len(self._finished) == len(self._next_positions):
            return True
        return num_tokens > (0 if self._start.stage is Stage.PREFILL else 1)

    def _check(self, delta: TokenDelta) -> None:
        what = f"sequence {delta.sequence}"
        if delta.sequence not in self._next_positions:
            raise ImpossibleUpdate(f"tokens of {what}, asked for {list(self._next_positions)}")
        if delta.sequence in self._finished:
            raise ImpossibleUpdate(f"tokens of {what} after its end")
        expected = self._next_positions[delta.sequence]
        if delta.position != expected:
            raise ImpossibleUpdate(f"token {delta.position} of {what}, expected {expected}")
        if delta.position + len(delta.token_ids) > self._start.sampling.max_tokens:
            raise ImpossibleUpdate(f"more than the {self._start.sampling.max_tokens} tokens {what} may have")
        if delta.token_ids and not 0 <= min(delta.token_ids) <= max(delta.token_ids) < self._vocab_size:
            wrong = max(delta.token_ids)
            raise ImpossibleUpdate(f"token id {wrong} of {what}, the vocabulary has {self._vocab_size}")
        if delta.logprobs and len(delta.logprobs) != len(delta.token_ids):
            raise ImpossibleUpdate(f"{len(delta.logprobs)} log-probabilities of {what}'s {len(delta.token_ids)} tokens")
