"""The session's messages as plain dataclasses; what travels inside master and worker.

Units: durations in seconds, sizes in bytes, lengths in tokens or blocks as named. `protos.session_codec` turns them
into protobuf and back. Those that come with every token are structs of msgspec, which are made in a tenth of the time.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from protos.sampling_messages import FinishReason, SamplingParams, TokenLogprobs
from protos.served_model import ServedModel

REPORT_INTERVAL_S = 0.5  # between a worker's load reports, which are its heartbeat


class Role(Enum):
    """Which stages masters may send to a worker. Routing policy only: every engine can compute any stage."""

    DEFAULT = "DEFAULT"  # whole requests only
    PREFILL = "PREFILL"
    DECODE = "DECODE"
    MIX = "MIX"  # any stage of any request


class Stage(Enum):
    PREFILL = "PREFILL"
    DECODE = "DECODE"
    WHOLE = "WHOLE"


class ErrorCode(Enum):
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    TRANSFER_FAILED = "TRANSFER_FAILED"
    PEER_UNREACHABLE = "PEER_UNREACHABLE"  # the worker is well, and so may be the one it pulls from: the pair is not
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the master is. The worker proves with `nonce` that it knows the cluster's secret."""

    master_id: str
    protocol: int
    version: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a leg. `sequences` are the indexes of the sequences, all continuing from `prompt_ids + output_ids`."""

    leg: int
    request_id: str
    stage: Stage
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    output_ids: tuple[int, ...] = ()
    sequences: tuple[int, ...] = (0,)
    priority: int = 0
    cache_salt: str = ""
    time_limit_s: float = 600.0
    kv_handle: bytes | None = None
    age_s: float = 0.0  # since the request came to its master


@dataclass(frozen=True, slots=True)
class Cancel:
    leg: int
    sequence: int | None = None  # None: the whole leg


@dataclass(frozen=True, slots=True)
class DecodeHere:
    """The prefill worker decodes this leg itself instead of handing it off."""

    leg: int


@dataclass(frozen=True, slots=True)
class Drain:
    pass


@dataclass(frozen=True, slots=True)
class Heartbeat:
    pass


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The master missed cache events."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether this master sends work here: why not, or None if it does."""

    refusal: str | None = None


ToWorker = Hello | Start | Cancel | DecodeHere | Drain | Heartbeat | SnapshotRequest | Standing


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who the worker is and what it can take."""

    instance: str
    role: Role
    model: ServedModel
    incarnation: int
    layout_fingerprint: bytes
    block_size: int
    num_blocks: int
    max_context: int
    max_num_seqs: int
    version: str
    protocol: int
    transfer_protocol: int
    proof: bytes = b""  # that it knows the cluster's secret; empty where it has none


class Started(msgspec.Struct, frozen=True):
    """Prefill (or, on a decode worker, the pull) has begun."""

    cached_tokens: int
    queue_s: float
    kv_handle: bytes | None = None


class Prefilled(msgspec.Struct, frozen=True):
    computed_tokens: int
    duration_s: float


class Transferred(msgspec.Struct, frozen=True):
    transport: str
    num_bytes: int
    blocks_sent: int
    blocks_skipped: int
    duration_s: float
    wait_s: float


class TokenDelta(msgspec.Struct, frozen=True):
    """Further output of one sequence; `position` is that of the first id among the sequence's output."""

    sequence: int
    position: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None


class Failure(msgspec.Struct, frozen=True):
    code: ErrorCode
    message: str


class LegUpdate(msgspec.Struct, frozen=True):
    """What happened to one leg since the last update. `ended`: the worker holds nothing for it any more."""

    leg: int
    started: Started | None = None
    prefilled: Prefilled | None = None
    transferred: Transferred | None = None
    deltas: tuple[TokenDelta, ...] = ()
    failure: Failure | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    ended: bool = False


class Step(msgspec.Struct, frozen=True):
    updates: tuple[LegUpdate, ...]


@dataclass(frozen=True, slots=True)
class TransferCounters:
    blocks_sent: int = 0
    blocks_received: int = 0
    blocks_skipped: int = 0
    bytes_received: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """A step that computes n tokens of prompts takes step_s + n * token_s."""

    step_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How busy a worker is. It doubles as the worker's heartbeat."""

    role: Role = Role.DEFAULT
    queued_requests: int = 0
    queued_prefill_tokens: int = 0
    running_sequences: int = 0
    available_blocks: int = 0
    held_blocks: int = 0
    steps: int = 0
    decode_step_s: float = 0.0
    prefill: PrefillSpeed | None = None  # None: not known yet
    exports: int = 0
    is_draining: bool = False
    is_stalled: bool = False
    transfer: TransferCounters = TransferCounters()
    failing_reason: str | None = None  # its own steps fail, one after another


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """Changes to a worker's prefix cache, numbered from 1 within a session.

    A snapshot replaces what was known; a long one goes on in the messages after it.
    """

    number: int
    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    is_snapshot: bool = False


ToMaster = Welcome | Step | LoadReport | CacheEvents
