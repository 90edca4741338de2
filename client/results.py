"""What calls give back. Times are in seconds, lengths in tokens, blocks or bytes as named."""

from collections.abc import Iterator
from dataclasses import dataclass

from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import LoadReport, Role


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; `cached_tokens` of the prompt were found in a prefix cache and not computed.

    `reasoning_tokens` of the completion are reasoning, where it is told apart: in chats.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where a request's time went: `first_token_s` and `total_s` since it arrived, the others durations.

    What stands before `first_token_s` adds up to it.
    """

    admit_s: float  # in the master, before a route was sought
    route_wait_s: float  # until there was a worker for it
    retry_s: float  # attempts that failed before the first token
    queue_s: float  # on the worker that computes the prompt
    prefill_s: float
    link_s: float  # from the master to that worker and back
    answer_s: float  # in the master, from token to text
    first_token_s: float
    decode_queue_s: float  # on the decode worker, before it took the KV
    transfer_s: float
    transfer_wait_s: float  # of the transfer, waiting for prefill to compute
    resume_wait_s: float  # after the first token, until there was a worker to go on with
    decode_s: float
    total_s: float
    transport: str
    transfer_bytes: int
    blocks_sent: int
    blocks_skipped: int
    prefill_instance: str
    decode_instance: str
    attempts: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Further output of the sequence's call numbered `index`; `id` and `name` are in its first delta only."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, cut short where the sequence was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """Further output of one sequence. Text may lag behind `token_ids`; `logprobs`, if asked for, run parallel to them.

    A chat's `text` is the content alone; the ids are of everything.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None  # set in the sequence's last delta
    matched_stop: str | None = None  # the stop string, or the token id in digits
    reasoning_text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence, whole. `finish_reason` is None only if the server left it out."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    matched_stop: str | None
    reasoning_text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything a request has given; `choices` are in order of their index, one for each of the n sequences."""

    id: str
    model: str
    created: int  # unix seconds
    choices: tuple[Choice, ...]
    usage: Usage | None
    timeline: Timeline | None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # if asked for, of each prompt token; the first has none

    @property
    def text(self) -> str:
        """The first sequence's."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first sequence's."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """The first sequence's."""
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request's time, in seconds; `start_s` since its arrival. Attempt 0 is the master itself."""

    name: str
    attempt: int
    instance: str
    start_s: float
    duration_s: float
    detail: str


@dataclass(frozen=True, slots=True)
class RequestStory:
    """What a master remembers of a request."""

    id: str
    answer_id: str
    name: str  # what its client calls it; may be empty
    model: str
    arrived_unix_s: float
    outcome: str  # running, finished, refused, failed, cancelled, or left by its client
    error: str  # its kind; may be empty
    message: str
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timeline: Timeline
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    id: str
    max_context: int  # prompt and completion together
    created: int  # unix seconds
    owner: str


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One worker as the master sees it."""

    name: str
    role: Role
    address: str
    model: str
    incarnation: int
    is_connected: bool
    state: str  # in a word
    trouble: str | None  # why it is not used
    load: LoadReport
    num_blocks: int
    block_size: int
    cached_blocks_known: int
    legs_in_flight: int
    circuit: str  # closed; open, as its engine failed too often; half_open, while a probe runs
    cut_from: tuple[str, ...]  # prefill workers whose KV does not get here


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The instances, and whether a request would succeed now. Iterates over its instances."""

    instances: tuple[InstanceInfo, ...]
    is_ready: bool
    not_ready_reason: str | None

    def __iter__(self) -> Iterator[InstanceInfo]:
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, position: int) -> InstanceInfo:
        return self.instances[position]
