"""What is remembered of a request that ended: never its prompt, never its outputs."""

from dataclasses import dataclass
from enum import Enum

from master.errors import ErrorKind, ServingError
from master.history.spans import Span
from master.output import Timeline
from protos.sampling_messages import SamplingParams


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
class SamplingSummary:
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    n: int
    stops: int  # how many stop strings
    has_grammar: bool


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
    sampling: SamplingSummary
    timeline: Timeline
    spans: tuple[Span, ...]

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first; None without one."""
        later = self.completion_tokens - 1
        return self.timeline.decode_s / later if later > 0 else None

    def is_called(self, name: str) -> bool:
        """Whether `name` is its id, in whatever form an answer carries it, or its client's name for it."""
        return name in (self.id, self.answer_id, self.name) or name.endswith(self.id)


def sampling_summary(sampling: SamplingParams, n: int, stops: int) -> SamplingSummary:
    return SamplingSummary(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        n=n,
        stops=stops,
        has_grammar=sampling.grammar is not None,
    )
