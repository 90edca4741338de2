"""What a worker asks of the engine that computes for it, and what the engine tells.

Runs go in; tokens, cache changes and failures come out. An engine knows nothing of masters, legs, deadlines or
retries: those are the worker's (`worker.legs`). It has one thread, on which it calls its sink and runs what is posted.

    admitted   --prefilled-->  tokens, its own or (handed off) a puller's
    admitted   --received-->   tokens of a run whose KV was pulled
    any        --failed, aborted, cancelled, every sequence finished-->  released, once, and nothing after it
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from kvcache.block_pool import CacheEvent
from kvcache.transfer.counters import ServerCounters
from protos.block_hash import root_hash
from protos.sampling_messages import SamplingParams, TokenLogprobs
from protos.served_model import ServedModel
from protos.session_messages import Failure, LoadReport, Stage, Start, TokenDelta, TransferCounters, Transferred
from worker.engines.limits import EngineLimits


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Something to compute: the continuations of one prompt, all from `prompt_ids + output_ids`.

    Stage PREFILL offers the KV to another worker, DECODE pulls it by `kv_handle`, WHOLE does neither.
    """

    number: int  # no other run of this worker's life has it
    stage: Stage
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    sequences: tuple[int, ...]
    sampling: SamplingParams
    priority: int  # lower runs first
    requested_s: float  # on time.monotonic's clock, and perhaps long before it came here: who asked first runs first
    root: bytes  # parent of the first block's hash: the model and the cache salt
    kv_handle: bytes | None

    @property
    def num_left(self) -> int:
        """Tokens that each sequence may still emit."""
        return self.sampling.max_tokens - len(self.output_ids)

    @staticmethod
    def of(start: Start, number: int, model: str, arrived_s: float) -> "Run":
        """`number` is the run's; `model` names what computes it; the start came here at `arrived_s`."""
        return Run(
            number=number,
            stage=start.stage,
            prompt_ids=start.prompt_ids,
            output_ids=start.output_ids,
            sequences=start.sequences,
            sampling=start.sampling,
            priority=start.priority,
            requested_s=arrived_s - start.age_s,
            root=root_hash(model, start.cache_salt),
            kv_handle=start.kv_handle,
        )


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What prefill chose for one sequence."""

    sequence: int
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """KV goes only between engines of one model and one layout."""

    model: ServedModel
    layout_fingerprint: bytes
    transfer_address: str


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Levels of the KV pool, in blocks, and totals since the start."""

    free_blocks: int
    cached_blocks: int
    held_blocks: int
    num_steps: int
    num_preemptions: int
    num_prefill_tokens: int
    num_decode_tokens: int


@dataclass(frozen=True, slots=True)
class PullTimes:
    """How long the pulls over one transport took. `wait_s` of `total_s` was prefill still computing."""

    num_pulls: int = 0
    total_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferFigures:
    """Totals since the start, of what was sent and of what was pulled."""

    sent: ServerCounters
    received: TransferCounters
    times: Mapping[str, PullTimes]  # by transport


class HandOffError(ValueError):
    """The KV that was pulled is not the run's; it must not be used."""


class EngineSink(Protocol):
    """Called on the engine thread; nothing here blocks."""

    def admitted(self, run: Run, cached_tokens: int, kv_handle: bytes | None) -> None:
        """The run has its blocks, and computes or pulls; `kv_handle` is where its own KV can be had."""

    def prefilled(self, run: Run, computed_tokens: int) -> None: ...

    def hand_off_record(self, run: Run, first_tokens: Items[FirstToken]) -> bytes:
        """What the worker that pulls the run's KV gets last."""

    def received(self, run: Run, transferred: Transferred, record: bytes) -> Items[FirstToken]:
        """The KV was pulled, and `record` came last. Raises HandOffError; else a token for each sequence."""

    def emitted(self, run: Run, delta: TokenDelta) -> None: ...

    def prompt_logprobs(self, run: Run, entries: Items[TokenLogprobs]) -> None: ...

    def failed(self, run: Run, failure: Failure) -> None: ...

    def released(self, run: Run) -> None:
        """Nothing is held for the run any more."""

    def turned(self, cache_events: Items[CacheEvent]) -> None:
        """What was told since the last call can be passed on. Comes after every step, before one that begins with
        newly admitted runs, and now and then while there is nothing to compute."""


class ComputeEngine(Protocol):
    """`start`, then `stop`. Attributes may be read on any thread."""

    @property
    def identity(self) -> EngineIdentity: ...

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def load(self) -> LoadReport:
        """What was so at the last turn; what the worker around the engine knows better is left at its default."""

    @property
    def figures(self) -> EngineFigures: ...

    @property
    def transfers(self) -> TransferFigures: ...

    @property
    def last_progress_s(self) -> float:
        """When the engine thread last ended a turn, on time.monotonic's clock."""

    def start(self, sink: EngineSink) -> None: ...

    def stop(self, timeout_s: float) -> bool:
        """End every run and every transfer, on any thread; False when that was not done in time."""

    def join(self) -> None:
        """Returns when the engine has ended, by `stop` or by a fault of its own."""

    def post(self, command: Callable[[], None]) -> None:
        """Have the engine thread call `command` before its next step; returns at once, on any thread."""

    # The rest is for commands and for the sink: on the engine thread.

    def add(self, run: Run) -> None: ...

    def cancel(self, run: Run, sequence: int) -> None:
        """Compute no more of one sequence. The run ends with its last."""

    def abort(self, run: Run, text: str) -> None:
        """End the run without `failed`; whoever pulls its KV is told `text`. Harmless after its end."""

    def decode_here(self, run: Run) -> bool:
        """Decode a run of stage PREFILL here, though its KV was offered; False when that is over."""

    def cached_blocks(self) -> list[bytes]:
        """The hash of every block that the prefix cache can find; the sink is told of all changes first."""
