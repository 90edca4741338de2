"""The one domain request: every edge (HTTP, gRPC) is turned into it, and the dispatcher serves only it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protos.sampling_messages import Grammar, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a client asked for, as it asked: None is unset. Checked and completed by `master.validation`."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    bad_words: Sequence[str] = ()
    grammar: Grammar | None = None
    grammar_field: str = "grammar"  # the name under which the client gave it
    priority: int | None = None
    cache_salt: str | None = None
    time_limit_s: float | None = None


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
    answer_id: str | None = None  # under which its client knows it, perhaps together with others
