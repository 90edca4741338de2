"""The one domain request: every edge (HTTP, gRPC) is turned into it, and the dispatcher serves only it."""

from dataclasses import dataclass, field

from master.output import OutputTiming
from master.text.reasoning_span import ReasoningSpan
from protos.sampling_messages import Grammar, SamplingOptions, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a client asked for, as it asked. Checked and completed by `master.validation`."""

    model: str | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    grammar: Grammar | None = None
    grammar_field: str = "grammar"  # the name under which the client gave it
    time_limit_s: float | None = None
    name: str | None = None  # what the client calls it


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request that passed every check that needs no worker."""

    id: str  # ours; never a client's
    model: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrived_s: float  # time.monotonic()
    time_limit_s: float
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    name: str | None = None  # what the client calls it
    client: str = ""  # tells clients apart by their keys
    reasoning: ReasoningSpan | None = None  # where stop strings do not count
    timing: OutputTiming = OutputTiming.AT_ONCE
    answer_id: str | None = None  # under which its client knows it, perhaps together with others
