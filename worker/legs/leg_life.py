"""The life of the attempts on one worker, from `begin` to the release of their blocks. Engine thread only.

Blocks are released in one place, `_release`, and only when nobody reads or writes them any more: an export or a pull
that still runs delays it until its own end is reported. What masters are told gathers in `take_updates`; the last of an
attempt is that it has released its blocks.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import ReleaseReason
from protos.messages import (
    AttemptUpdate,
    ErrorCode,
    Failure,
    FinishReason,
    Prefilled,
    Stage,
    Start,
    Started,
    TokenDelta,
    TokenLogprobs,
    Transferred,
)
from worker.engines.torch.grammar import Grammars
from worker.engines.torch.kv_transfer import KvPort, PullOutcome, kv_handle, kv_source
from worker.engines.torch.limits import EngineLimits
from worker.engines.torch.sampler import SampledToken
from worker.engines.torch.scheduler import Scheduler
from worker.legs.hand_off import FirstToken, HandOffError, check_record, make_record
from worker.legs.leg import Attempt, Link, Phase, Sequence

logger = logging.getLogger(__name__)

FINISHED = "the request finished on the prefill worker"


class Attempts:
    """`post` runs a command on the engine thread; `copy_block(source, destination)` copies KV within the pool."""

    def __init__(
        self,
        scheduler: Scheduler,
        port: KvPort,
        limits: EngineLimits,
        grammars: Grammars,
        model_name: str,
        *,
        post: Callable[[Callable[[], None]], None],
        copy_block: Callable[[int, int], None],
    ) -> None:
        self._scheduler = scheduler
        self._port = port
        self._limits = limits
        self._grammars = grammars
        self._model_name = model_name
        self._post = post
        self._copy_block = copy_block
        self._attempts: dict[tuple[Link, int], Attempt] = {}
        self._unreleased: set[Attempt] = set()
        self._updates: dict[Link, list[AttemptUpdate]] = {}
        self._num_arrived = 0
        self._is_draining = False

    @property
    def num_unreleased(self) -> int:
        """Attempts that may hold blocks, ended ones among them."""
        return len(self._unreleased)

    @property
    def num_exports(self) -> int:
        return sum(attempt.export is not None for attempt in self._unreleased)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def take_updates(self) -> dict[Link, list[AttemptUpdate]]:
        """What happened since the last call."""
        updates, self._updates = self._updates, {}
        return updates

    # --- what masters ask for

    def begin(self, link: Link, start: Start) -> None:
        if (link, start.attempt) in self._attempts:
            logger.warning("%s: attempt %d was started twice", start.request_id, start.attempt)
            return
        failure = self._refusal(start)
        if failure is not None:
            self._tell(link, AttemptUpdate(start.attempt, failure=failure, ended=True))
            return
        self._num_arrived += 1
        attempt = Attempt(start, link, self._num_arrived, self._model_name, time.monotonic())
        if (grammar := start.sampling.grammar) is not None:
            for sequence in attempt.sequences:
                sequence.grammar = self._grammars.matcher(grammar, start.sampling.stop_token_ids)
        self._attempts[link, start.attempt] = attempt
        self._unreleased.add(attempt)
        self._scheduler.add(attempt.leader)

    def cancel(self, link: Link, number: int, index: int | None) -> None:
        attempt = self._attempts.get((link, number))
        if attempt is None:
            return  # its end is on its way to the master
        for sequence in attempt.unfinished:
            if index is None or sequence.index == index:
                sequence.finish_reason = FinishReason.CANCELLED
                if attempt.phase is Phase.RUNNING and attempt.is_prefilled:
                    self._scheduler.remove(sequence)
        if not attempt.unfinished:
            self._end(attempt, "cancelled")

    def decode_here(self, link: Link, number: int) -> None:
        attempt = self._attempts.get((link, number))
        if attempt is None:
            # Unless it finished, its master takes the KV to be here still, and would wait for tokens.
            failure = Failure(ErrorCode.TRANSFER_FAILED, "the KV is gone")
            self._tell(link, AttemptUpdate(number, failure=failure))
        elif attempt.stage is Stage.PREFILL:
            attempt.stage = Stage.WHOLE
            if attempt.export is not None:
                attempt.export.abort("the prefill worker decodes this request itself")

    def drop_link(self, link: Link) -> None:
        """The master is gone: nobody wants its attempts."""
        for attempt in [attempt for (owner, _), attempt in self._attempts.items() if owner is link]:
            self._end(attempt, "the master disconnected")
        self._updates.pop(link, None)

    def drain(self) -> None:
        self._is_draining = True

    def end_all(self) -> None:
        for attempt in list(self._attempts.values()):
            self._end(attempt, "the worker stops")

    def end_overdue(self, now_s: float) -> None:
        for attempt in list(self._attempts.values()):
            if now_s >= attempt.deadline_s:
                limit_s = attempt.start.time_limit_s
                self.fail(attempt, ErrorCode.DEADLINE_EXCEEDED, f"not finished within {limit_s:g} s")

    # --- what the engine did

    def on_admitted(self, sequence: Sequence) -> None:
        """The sequence got its blocks; the first time, its attempt begins."""
        attempt = sequence.attempt
        if attempt.phase is not Phase.QUEUED:
            return
        attempt.admitted_s = time.monotonic()
        attempt.num_cached = min(sequence.num_computed, len(attempt.start.prompt_ids))
        if attempt.is_pull:
            attempt.phase = Phase.PULLING
            self._begin_pull(attempt)
        else:
            attempt.phase = Phase.RUNNING
            if attempt.can_hand_off:
                on_release = partial(self._post_export_released, attempt)
                attempt.export = self._port.export(attempt.start.attempt, on_release)
                self.publish_blocks(attempt)
        source = None if attempt.export is None else kv_source(attempt.export)
        started = Started(attempt.num_cached, attempt.admitted_s - attempt.arrived_s, source)
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, started=started))

    def publish_blocks(self, attempt: Attempt, *, with_partial: bool = False) -> None:
        """Offer the blocks computed since the last call to the decode worker."""
        if attempt.export is None:
            return
        sequence = attempt.leader
        num_blocks = sequence.num_computed // self._scheduler.block_size
        if with_partial:
            num_blocks = len(sequence.blocks)
        attempt.export.publish(sequence.blocks[attempt.num_published : num_blocks])
        attempt.num_published = num_blocks

    def report_prompt_logprobs(self, attempt: Attempt, first: int, entries: list[TokenLogprobs]) -> None:
        """`entries` are of the prompt tokens from position `first` on; those reported before are left out."""
        new = entries[attempt.num_prompt_logprobs - first :]
        attempt.num_prompt_logprobs += len(new)
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, prompt_logprobs=tuple(new)))

    def take_tokens(self, sequence: Sequence, tokens: list[SampledToken]) -> None:
        """The next token of a decoding sequence, or after a shared prefill the first of every one."""
        attempt = sequence.attempt
        takers = [sequence] if attempt.is_prefilled else attempt.sequences
        for taker, token in zip(takers, tokens, strict=True):
            self._append(taker, token.token_id, token.logprobs)
        if not attempt.is_prefilled:
            first_tokens = [
                FirstToken(taker.index, token.token_id, token.logprobs)
                for taker, token in zip(takers, tokens, strict=True)
            ]
            self._on_prefilled(attempt, first_tokens)
        elif sequence.finish_reason is not None:
            self._scheduler.remove(sequence)
        if not attempt.unfinished:
            self._end(attempt, FINISHED)

    def fail(self, attempt: Attempt, code: ErrorCode, message: str) -> None:
        if attempt.phase is Phase.ENDED:
            return
        logger.warning("%s: attempt %d failed: %s", attempt.start.request_id, attempt.start.attempt, message)
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, failure=Failure(code, message)))
        self._end(attempt, message)

    # --- hand-off

    def _begin_pull(self, attempt: Attempt) -> None:
        leader = attempt.leader
        assert attempt.start.kv_source is not None
        on_end = partial(self._post_pull_ended, attempt)
        num_skip = leader.num_computed // self._scheduler.block_size
        attempt.pull = self._port.pull(attempt.start.kv_source, num_skip, leader.blocks, on_end)

    def _on_prefilled(self, attempt: Attempt, first_tokens: list[FirstToken]) -> None:
        attempt.is_prefilled = True
        num_computed = attempt.leader.num_computed - attempt.num_cached
        prefilled = Prefilled(num_computed, time.monotonic() - attempt.admitted_s)
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, prefilled=prefilled))
        if attempt.export is None:
            self._fan_out(attempt)
            return
        self._scheduler.pause(attempt.leader)
        attempt.phase = Phase.HANDED_OFF
        # One that is told to decode here goes on when nobody reads its blocks any more.
        if attempt.stage is Stage.PREFILL and attempt.unfinished:
            self.publish_blocks(attempt, with_partial=True)
            try:
                attempt.export.seal(make_record(attempt, first_tokens))
            except ValueError as error:
                self.fail(attempt, ErrorCode.INTERNAL, str(error))

    def _on_export_released(self, attempt: Attempt, reason: ReleaseReason) -> None:
        attempt.export = None
        if attempt.phase is Phase.ENDED:
            self._release(attempt)
        elif attempt.stage is Stage.WHOLE:
            if attempt.phase is Phase.HANDED_OFF:
                attempt.phase = Phase.RUNNING
                self._fan_out(attempt)
        elif reason is ReleaseReason.ACKNOWLEDGED:
            self._end(attempt, "handed off")
        else:
            self.fail(attempt, ErrorCode.TRANSFER_FAILED, f"nobody took the KV: {reason.value}")

    def _on_pull_ended(self, attempt: Attempt, outcome: PullOutcome) -> None:
        attempt.pull = None
        if attempt.phase is Phase.ENDED:
            self._release(attempt)
            return
        if isinstance(outcome, TransferError):
            if outcome.reason is TransferFailure.ABORTED and outcome.text == FINISHED:
                self._end(attempt, FINISHED)  # the prefill worker has told the master
            else:
                self.fail(attempt, ErrorCode.TRANSFER_FAILED, str(outcome))
            return
        try:
            record = check_record(outcome.record, attempt, self._limits.vocab_size)
        except HandOffError as error:
            self.fail(attempt, ErrorCode.TRANSFER_FAILED, str(error))
            return
        transferred = Transferred(
            transport=outcome.transport.name.lower(),
            num_bytes=outcome.num_bytes,
            blocks_sent=outcome.num_blocks_sent,
            blocks_skipped=outcome.num_blocks_skipped,
            duration_s=outcome.duration_s,
            wait_s=outcome.wait_s,
        )
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, transferred=transferred))
        attempt.is_prefilled = True
        attempt.phase = Phase.RUNNING
        self._scheduler.receive(attempt.leader)
        # The master may have had these from the prefill worker; should that one have died, it has them from here.
        for sequence, token in zip(attempt.sequences, record.first_tokens, strict=True):
            self._append(sequence, token.token_id, token.logprobs)
        self._fan_out(attempt)
        if not attempt.unfinished:
            self._end(attempt, FINISHED)

    def _fan_out(self, attempt: Attempt) -> None:
        """Decode every unfinished sequence from the KV that the leader computed or received."""
        leader = attempt.leader
        for sequence in attempt.unfinished:
            if sequence is leader:
                self._scheduler.run(leader)
            elif (partial_block := self._scheduler.fork(leader, sequence)) is not None:
                self._copy_block(*partial_block)
        if leader.finish_reason is not None:
            self._scheduler.remove(leader)

    # --- ends

    def _end(self, attempt: Attempt, text: str) -> None:
        if attempt.phase is Phase.ENDED:
            return
        attempt.phase = Phase.ENDED
        del self._attempts[attempt.link, attempt.start.attempt]
        for sequence in attempt.sequences:
            self._scheduler.pause(sequence)
        if attempt.export is not None:
            attempt.export.abort(text)
        elif attempt.pull is not None:
            attempt.pull.cancel()
        else:
            self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        for sequence in attempt.sequences:
            self._scheduler.remove(sequence)
        self._unreleased.discard(attempt)
        self._emit(attempt, AttemptUpdate(attempt.start.attempt, ended=True))

    # --- small parts

    def _refusal(self, start: Start) -> Failure | None:
        if self._is_draining:
            return Failure(ErrorCode.UNAVAILABLE, "the worker is draining")
        if self._scheduler.num_waiting >= self._limits.max_queued:
            return Failure(ErrorCode.RESOURCE_EXHAUSTED, f"{self._scheduler.num_waiting} attempts are queued")
        if start.kv_source is not None:
            try:
                kv_handle(start.kv_source)
            except ValueError as error:
                return Failure(ErrorCode.TRANSFER_FAILED, f"kv_source: {error}")
        return self._limits.refusal(start)

    def _append(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> None:
        if sequence.finish_reason is not None:
            return  # cancelled while the step ran
        position = sequence.num_output
        sequence.append(token_id)
        sequence.finish_reason = self._finish_reason(sequence, token_id)
        delta = TokenDelta(
            sequence=sequence.index,
            position=position,
            token_ids=(token_id,),
            logprobs=() if logprobs is None else (logprobs,),
            finish_reason=sequence.finish_reason,
        )
        self._emit(sequence.attempt, AttemptUpdate(sequence.attempt.start.attempt, deltas=(delta,)))

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        params = sequence.attempt.start.sampling
        if token_id in params.stop_token_ids:
            return FinishReason.STOP
        if sequence.grammar is not None and sequence.grammar.is_complete(sequence.output_ids):
            return FinishReason.STOP
        if sequence.num_output >= params.max_tokens or sequence.num_tokens >= self._limits.max_context:
            return FinishReason.LENGTH
        return None

    def _emit(self, attempt: Attempt, update: AttemptUpdate) -> None:
        self._tell(attempt.link, update)

    def _tell(self, link: Link, update: AttemptUpdate) -> None:
        self._updates.setdefault(link, []).append(update)

    def _post_export_released(self, attempt: Attempt, reason: ReleaseReason) -> None:
        self._post(partial(self._on_export_released, attempt, reason))

    def _post_pull_ended(self, attempt: Attempt, outcome: PullOutcome) -> None:
        self._post(partial(self._on_pull_ended, attempt, outcome))
