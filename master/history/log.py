"""The requests that run, and the latest that ended, without what they said. Bounded; nothing is written per token."""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from master.dispatch.token_progress import TokenProgress
from master.dispatch.trace import RequestTrace
from master.errors import ErrorKind, ServingError
from master.history.record import Outcome, RequestRecord, outcome_of, sampling_summary
from master.request import GenerationRequest

NUM_RECENT = 1000
NUM_FAILED = 200  # kept beside the recent ones, which many good requests may push out
MESSAGE_LENGTH = 300
# Messages of these may repeat what the client sent.
QUOTING = frozenset({ErrorKind.INVALID_REQUEST})


class OpenRequest:
    """A request from its admission to its end."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.error: ServingError | None = None
        self.progress: TokenProgress | None = None
        self.trace: RequestTrace | None = None

    def follow(self, progress: TokenProgress, trace: RequestTrace) -> None:
        self.progress, self.trace = progress, trace

    @property
    def num_tokens(self) -> int:
        return 0 if self.progress is None else self.progress.num_tokens

    def record(self, trace: RequestTrace) -> RequestRecord:
        """What is known by now."""
        request, error, timeline = self.request, self.error, trace.timeline()
        is_shown = error is not None and error.kind not in QUOTING
        sequences = () if self.progress is None else self.progress.sequences
        return RequestRecord(
            id=request.id,
            answer_id=request.answer_id or request.id,
            name=request.name or "",
            model=request.model,
            arrived_unix_s=time.time() - timeline.total_s,
            outcome=self.outcome,
            error="" if error is None else error.kind.value,
            message=error.message[:MESSAGE_LENGTH] if error is not None and is_shown else "",
            finish_reasons=tuple(one.finish_reason.value for one in sequences if one.finish_reason is not None),
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=self.num_tokens,
            cached_tokens=trace.cached_tokens or 0,
            priority=request.priority,
            sampling=sampling_summary(request.sampling, request.n, len(request.stop)),
            timeline=timeline,
            events=tuple(trace.events),
        )


class RequestLog:
    """`on_end` is told of every request how it ended."""

    def __init__(self, on_end: Callable[[Outcome, RequestRecord | None], None] = lambda outcome, record: None) -> None:
        self.num_ended: Counter[Outcome] = Counter()
        self.errors: Counter[str] = Counter()  # by kind
        self.num_remembered = 0
        self._on_end = on_end
        self._open: set[OpenRequest] = set()
        self._recent: deque[RequestRecord] = deque(maxlen=NUM_RECENT)
        self._failed: deque[RequestRecord] = deque(maxlen=NUM_FAILED)
        self._num_ended_tokens = 0

    @contextmanager
    def hold(self, request: GenerationRequest) -> Iterator[OpenRequest]:
        """Keeps the request among those that run while it is served inside."""
        entry = OpenRequest(request)
        self._open.add(entry)
        try:
            yield entry
        except ServingError as error:
            entry.error, entry.outcome = error, outcome_of(error)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            entry.outcome = entry.outcome or Outcome.LEFT
            raise
        finally:
            self._open.discard(entry)
            self._end(entry)

    def _end(self, entry: OpenRequest) -> None:
        outcome = entry.outcome = entry.outcome or Outcome.FAILED
        self.num_ended[outcome] += 1
        if entry.error is not None:
            self.errors[entry.error.kind.value] += 1
        self._num_ended_tokens += entry.num_tokens
        record = None if entry.trace is None else entry.record(entry.trace)
        if record is not None:  # else it was not admitted
            self.remember(record)
        self._on_end(outcome, record)

    def remember(self, record: RequestRecord) -> None:
        self.num_remembered += 1
        self._recent.append(record)
        if record.outcome is not Outcome.FINISHED:
            self._failed.append(record)

    @property
    def num_running(self) -> int:
        return len(self._open)

    @property
    def num_tokens(self) -> int:
        """All requests together have got so many since the master began."""
        return self._num_ended_tokens + sum(entry.num_tokens for entry in self._open)

    @property
    def recent(self) -> Sequence[RequestRecord]:
        """The latest one last."""
        return self._recent

    @property
    def failed(self) -> Sequence[RequestRecord]:
        """Those that did not finish, the latest one last."""
        return self._failed

    def find(self, name: str) -> list[RequestRecord]:
        """The latest one first; those that still run, as far as they are."""
        running = [entry.record(entry.trace) for entry in self._open if entry.trace is not None]
        ended = {record.id: record for record in itertools.chain(self._failed, self._recent)}
        return [record for record in reversed([*ended.values(), *running]) if record.is_called(name)]
