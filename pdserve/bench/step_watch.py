"""An engine's sink that notes when its steps end and how many tokens each gave."""

import queue
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass

from kvcache.block_pool import CacheEvent
from protos.sampling_messages import TokenLogprobs
from protos.session_messages import Failure, TokenDelta, Transferred
from worker.engines.compute_engine import FirstToken, Run

ENOUGH_S = 600.0  # for any one step


class EngineFailed(RuntimeError):
    """The engine said so of a run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came since the turn before; on time.monotonic's clock."""

    ended_s: float
    num_tokens: int
    num_released: int
    failure: str | None


class StepWatch:
    def __init__(self) -> None:
        self._turns: queue.Queue[Turn] = queue.Queue()
        self._num_tokens = 0
        self._num_released = 0
        self._failure: str | None = None

    def next_turn(self) -> Turn:
        """Waits for a turn in which something came. Raises EngineFailed."""
        turn = self._turns.get(timeout=ENOUGH_S)
        if turn.failure is not None:
            raise EngineFailed(turn.failure)
        return turn

    def admitted(self, run: Run, cached_tokens: int, kv_handle: bytes | None) -> None:
        pass

    def prefilled(self, run: Run, computed_tokens: int) -> None:
        pass

    def hand_off_record(self, run: Run, first_tokens: Items[FirstToken]) -> bytes:
        raise AssertionError("whole runs are handed to nobody")

    def received(self, run: Run, transferred: Transferred, record: bytes) -> Items[FirstToken]:
        raise AssertionError("whole runs pull nothing")

    def emitted(self, run: Run, delta: TokenDelta) -> None:
        self._num_tokens += len(delta.token_ids)

    def prompt_logprobs(self, run: Run, entries: Items[TokenLogprobs]) -> None:
        pass

    def failed(self, run: Run, failure: Failure) -> None:
        self._failure = failure.message

    def released(self, run: Run) -> None:
        self._num_released += 1

    def turned(self, cache_events: Items[CacheEvent]) -> None:
        if self._num_tokens or self._num_released or self._failure:
            self._turns.put(Turn(time.monotonic(), self._num_tokens, self._num_released, self._failure))
            self._num_tokens, self._num_released, self._failure = 0, 0, None
