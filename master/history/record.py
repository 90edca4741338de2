"""What is remembered of a request that ended: never its prompt, never its outputs."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass, fields
from enum import Enum

from master.errors import ErrorKind, ServingError
from master.history.events import Event
from master.history.spans import Span, spans_of
from master.output import Timeline
from protos.sampling_messages import SamplingParams

DEFAULTS = SamplingParams()


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"  # for what it asks, or for want of room
    FAILED = "failed"
    CANCELLED = "cancelled"  # by its id
    LEFT = "left"  # its client went, or was cut


_OUTCOMES = {
    ErrorKind.INVALID_REQUEST: Outcome.REFUSED,
    ErrorKind.OVERLOADED: Outcome.REFUSED,
    ErrorKind.CANCELLED: Outcome.CANCELLED,
}


def outcome_of(error: ServingError) -> Outcome:
    return _OUTCOMES.get(error.kind, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    id: str
    answer_id: str  # under which its client knows it
    name: str  # what its client calls it; may be empty
    model: str
    arrived_unix_s: float
    outcome: Outcome | None  # None: it runs
    error: str  # its kind, empty if there was none
    message: str  # of the error; empty where it might repeat what the client sent
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    priority: int
    sampling: Mapping[str, float]  # what differs from the defaults; of what has texts or tokens, how many
    timeline: Timeline
    events: tuple[Event, ...]

    @property
    def spans(self) -> list[Span]:
        """Its bars, made when somebody looks."""
        return spans_of(self.events, self.timeline)

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first; None without one."""
        later = self.completion_tokens - 1
        return self.timeline.decode_s / later if later > 0 else None

    def is_called(self, name: str) -> bool:
        """Whether `name` is its id, in whatever form an answer carries it, or its client's name for it."""
        return name in (self.id, self.answer_id, self.name) or name.endswith(self.id)


def sampling_summary(sampling: SamplingParams, n: int, stops: int) -> dict[str, float]:
    """Numbers only: texts are the client's."""
    summary = {"n": float(n), "stop": float(stops)}
    for declared in fields(SamplingParams):
        value, default = getattr(sampling, declared.name), getattr(DEFAULTS, declared.name)
        if value != default:
            summary[declared.name] = _number(value)
    return summary


def _number(value: object) -> float:
    match value:
        case int() | float():
            return value
        case Sized():
            return len(value)
        case _:
            return 1
