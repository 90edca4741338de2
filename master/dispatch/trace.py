"""What a request's attempts did, for its usage and timeline."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.history.events import Event, EventKind
from master.output import Timeline
from protos.sampling_messages import TokenLogprobs
from protos.session_messages import LegUpdate, Stage, Transferred

MAX_EVENTS = 200  # of a request with many outputs, each of which may be tried again


@dataclass(slots=True)
class _Beginning:
    """How the first token came about: by which attempt, after what."""

    attempt: int = 0
    sent_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0


class RequestTrace:
    """Written by the attempts. `cached_tokens` are those of the first attempt.

    What comes before the first token is told of the attempt that gave it, and what its forerunners took as `retry_s`;
    transfer and decode are told of the latest attempt.
    """

    def __init__(self, arrived_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.attempts = 0
        self.events: list[Event] = []
        self.cached_tokens: int | None = None
        self.prefill_instance = ""
        self.decode_instance = ""
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._clock = clock
        self._arrived_s = arrived_s
        self._admitted_s: float | None = None
        self._beginning = _Beginning()
        self._token_s: float | None = None  # when the first token was here
        self._answered_s: float | None = None  # when it was given to the edge
        self._route_wait_s = 0.0
        self._resume_wait_s = 0.0
        self._decode_queue_s = 0.0
        self._transferred: Transferred | None = None
        self._num_prompt_logprobs_taken = 0

    def admit(self) -> None:
        """The request looks for a route now."""
        self._admitted_s = self._clock()

    def wait(self, duration_s: float) -> None:
        """There was no route for so long."""
        if self._token_s is None:
            self._route_wait_s += duration_s
        else:
            self._resume_wait_s += duration_s

    def begin_attempt(self, worker: str = "") -> None:
        self.attempts += 1
        self._note(EventKind.ATTEMPT, worker)
        self._transferred = None
        self._decode_queue_s = 0.0
        self.decode_instance = ""
        if self._token_s is None:
            self._beginning = _Beginning(self.attempts, self._clock())

    def count(self, worker: str, stage: Stage, update: LegUpdate) -> None:
        is_beginning = self._beginning.attempt == self.attempts
        if update.started is not None and stage is Stage.DECODE:
            self._decode_queue_s = update.started.queue_s
            self._note(EventKind.TRANSFER_STARTED, worker, update.started.queue_s)
        elif update.started is not None:
            if self.cached_tokens is None:
                self.cached_tokens = update.started.cached_tokens
            if is_beginning:
                self._beginning.queue_s = update.started.queue_s
            self.prefill_instance = worker
            self._note(EventKind.PREFILL_STARTED, worker, update.started.queue_s)
        if update.prefilled is not None:
            self._note(EventKind.PREFILLED, worker, update.prefilled.duration_s)
            if is_beginning:
                self._beginning.prefill_s = update.prefilled.duration_s
        if update.transferred is not None:
            self._transferred = update.transferred
            self.decode_instance = worker
            moved = update.transferred
            self._note(EventKind.TRANSFERRED, worker, moved.duration_s, f"{moved.num_bytes} bytes, {moved.transport}")
        if update.deltas and self._token_s is None:
            self._token_s = self._clock()
            self._note(EventKind.FIRST_TOKEN, worker)

    def fail_attempt(self, worker: str, why: str) -> None:
        """The attempt ended without the request's end. `why` says nothing of what the request says."""
        self._note(EventKind.FAILED, worker, detail=why)

    def _note(self, kind: EventKind, worker: str, duration_s: float = 0.0, detail: str = "") -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(kind, self._clock() - self._arrived_s, self.attempts, worker, duration_s, detail))

    def answer(self) -> None:
        """An output is given to the edge."""
        if self._answered_s is None:
            self._answered_s = self._clock()

    def add_prompt_logprobs(self, position: int, entries: Sequence[TokenLogprobs]) -> None:
        """`entries` are of the prompt tokens from `position` on; an attempt before may have reported some of them."""
        self.prompt_logprobs += entries[len(self.prompt_logprobs) - position :]

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those that came since the last call."""
        if self._num_prompt_logprobs_taken == len(self.prompt_logprobs):
            return ()
        new = tuple(self.prompt_logprobs[self._num_prompt_logprobs_taken :])
        self._num_prompt_logprobs_taken += len(new)
        return new

    @property
    def num_workers(self) -> int:
        """The latest attempt had so many."""
        return 1 if self.decode_instance in ("", self.prefill_instance) else 2

    def timeline(self) -> Timeline:
        """Everything before the first token adds up to `first_token_s`; `link_s` is what no side has measured."""
        now_s = self._clock()
        arrived_s, beginning = self._arrived_s, self._beginning
        admitted_s = self._admitted_s if self._admitted_s is not None else now_s
        token_s = self._token_s if self._token_s is not None else now_s
        answered_s = self._answered_s if self._answered_s is not None else now_s
        moved = self._transferred or Transferred("", 0, 0, 0, 0.0, 0.0)
        worked_s = beginning.queue_s + beginning.prefill_s
        waited_s = self._route_wait_s
        return Timeline(
            admit_s=admitted_s - arrived_s,
            route_wait_s=waited_s,
            retry_s=max(0.0, beginning.sent_s - admitted_s - waited_s),
            queue_s=beginning.queue_s,
            prefill_s=beginning.prefill_s,
            link_s=max(0.0, token_s - beginning.sent_s - worked_s),
            answer_s=answered_s - token_s,
            decode_queue_s=self._decode_queue_s,
            transfer_s=moved.duration_s,
            transfer_wait_s=moved.wait_s,
            resume_wait_s=self._resume_wait_s,
            first_token_s=answered_s - arrived_s,
            decode_s=now_s - answered_s,
            total_s=now_s - arrived_s,
            transport=moved.transport,
            transfer_bytes=moved.num_bytes,
            blocks_sent=moved.blocks_sent,
            blocks_skipped=moved.blocks_skipped,
            prefill_instance=self.prefill_instance,
            decode_instance=self.decode_instance or self.prefill_instance,
            attempts=self.attempts,
        )
