"""How far a request has come: each token once, in order, whoever produced it.

Prefill worker, decode worker and any later attempt report tokens by position. Every one of them begins at or before
what is known, so what is new is simply what lies beyond it.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field

from master.dispatch.output_pace import MOMENT_S, OutputPace
from master.output import OutputTiming
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import TokenDelta


@dataclass(slots=True)
class SequenceProgress:
    """One sequence's output so far, and how much of it has been taken."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_taken: int = 0
    is_end_taken: bool = False

    def add(self, delta: TokenDelta) -> bool:
        """True if the delta had something new."""
        if self.finish_reason is not None:
            return False  # the rest was on its way when a stop string ended the sequence
        num_known = len(self.token_ids)
        assert delta.position <= num_known, f"sequence {self.index}: token {delta.position} came before {num_known}"
        num_old = num_known - delta.position
        self.token_ids += delta.token_ids[num_old:]
        self.logprobs += delta.logprobs[num_old:]
        if len(self.token_ids) == delta.position + len(delta.token_ids):
            self.finish_reason = delta.finish_reason
        return len(self.token_ids) > num_known or self.finish_reason is not None


class TokenProgress:
    """The progress of all sequences of a request. Its attempts add, its consumer takes; a slow one holds back nothing
    but itself, as what is not taken is at most what the request may emit."""

    def __init__(
        self, num_sequences: int, timing: OutputTiming = OutputTiming.AT_ONCE, pace: OutputPace | None = None
    ) -> None:
        """`pace` is shared by all requests; without one there is no moment to wait for."""
        self.sequences = [SequenceProgress(index) for index in range(num_sequences)]
        self._timing = timing
        self._pace = pace
        self._has_news = asyncio.Event()
        self._taken_s = -math.inf  # when the latest was taken
        self._is_waiting = False  # for a moment's end

    @property
    def num_tokens(self) -> int:
        """All sequences together have so many."""
        return sum([len(sequence.token_ids) for sequence in self.sequences])

    def add(self, delta: TokenDelta) -> None:
        sequence = self.sequences[delta.sequence]
        if not sequence.add(delta):
            return
        if sequence.finish_reason is not None or self._is_due():
            self._has_news.set()
        elif self._timing is OutputTiming.GATHERED and self._pace is not None and not self._is_waiting:
            self._is_waiting = True
            self._pace.later(self._on_moment)

    def finish(self, index: int, reason: FinishReason) -> None:
        """The sequence needs no further token."""
        self.sequences[index].finish_reason = reason

    def wake(self) -> None:
        """Let `take` return although there may be nothing new."""
        self._has_news.set()

    async def take(self) -> list[TokenDelta]:
        """What came since the last call, waiting for the first of it."""
        await self._has_news.wait()
        self._has_news.clear()
        self._taken_s = time.monotonic()
        news = []
        for sequence in self.sequences:
            first, sequence.num_taken = sequence.num_taken, len(sequence.token_ids)
            finish_reason = None if sequence.is_end_taken else sequence.finish_reason
            if first < sequence.num_taken or finish_reason is not None:
                sequence.is_end_taken = finish_reason is not None
                ids = tuple(sequence.token_ids[first:])
                logprobs = tuple(sequence.logprobs[first:]) if sequence.logprobs else ()
                news.append(TokenDelta(sequence.index, first, ids, logprobs, finish_reason))
        return news

    def _is_due(self) -> bool:
        match self._timing:
            case OutputTiming.WHOLE:
                return self._taken_s == -math.inf
            case OutputTiming.GATHERED if self._pace is not None:
                return time.monotonic() - self._taken_s >= MOMENT_S
            case _:
                return True

    def _on_moment(self) -> None:
        self._is_waiting = False
        self._has_news.set()
