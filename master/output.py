"""What a request yields, before an edge gives it its form."""

from dataclasses import dataclass

from protos.sampling_messages import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """Further output of one sequence. `token_ids` and `logprobs` run in parallel; text may lag behind them."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None  # the stop string or token id that ended it


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; `cached_tokens` of the prompt were found in a prefix cache and not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where a request's time went, in seconds: `first_token_s` and `total_s` since arrival, the others durations."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    transfer_wait_s: float = 0.0  # of the transfer, waiting for prefill to compute
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    transport: str = ""
    transfer_bytes: int = 0
    blocks_sent: int = 0
    blocks_skipped: int = 0
    prefill_instance: str = ""
    decode_instance: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """One increment; the last one of a request carries usage and timeline."""

    choices: tuple[ChoiceDelta, ...]
    usage: Usage | None = None
    timeline: Timeline | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
