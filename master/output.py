"""What a request yields, before an edge gives it its form. What is made for each token is a struct of msgspec."""

from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from protos.sampling_messages import FinishReason, TokenLogprobs


class OutputTiming(Enum):
    """When outputs come. In every case the first one and the end of a sequence come at once."""

    AT_ONCE = auto()
    GATHERED = auto()  # what comes within a moment of the output before it waits for the moment's end
    WHOLE = auto()  # what comes in between waits for the end


class SequenceDelta(msgspec.Struct, frozen=True):
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
    """Where a request's time went, in seconds: `first_token_s` and `total_s` since arrival, the others durations.

    `first_token_s` is the sum of what stands before it, down to 5 %: a request that is answered from a decode worker's
    copy of the first token has some of the transfer in `link_s`.
    """

    admit_s: float = 0.0  # in the master, before a route was sought
    route_wait_s: float = 0.0  # until there was a worker for it
    retry_s: float = 0.0  # attempts that failed before the first token
    queue_s: float = 0.0  # on the worker that computes the prompt
    prefill_s: float = 0.0
    link_s: float = 0.0  # from the master to that worker and back, and what neither measured
    answer_s: float = 0.0  # in the master, from token to text
    first_token_s: float = 0.0
    decode_queue_s: float = 0.0  # on the decode worker, before it took the KV
    transfer_s: float = 0.0
    transfer_wait_s: float = 0.0  # of the transfer, waiting for prefill to compute
    resume_wait_s: float = 0.0  # after the first token, until there was a worker to go on with
    decode_s: float = 0.0
    total_s: float = 0.0
    transport: str = ""
    transfer_bytes: int = 0
    blocks_sent: int = 0
    blocks_skipped: int = 0
    prefill_instance: str = ""
    decode_instance: str = ""
    attempts: int = 0


class GenerationOutput(msgspec.Struct, frozen=True):
    """One increment; the last one of a request carries usage and timeline."""

    deltas: tuple[SequenceDelta, ...]
    usage: Usage | None = None
    timeline: Timeline | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None  # of the prompt, once a worker has said so
