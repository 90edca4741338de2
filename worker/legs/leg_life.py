"""The life of the legs on one worker, from `begin` to the release of their blocks. Engine thread only.

Blocks are released in one place, `_release`, and only when nobody reads or writes them any more: an export or a pull
that still runs delays it until its own end is reported. What masters are told gathers in `take_updates`; the last of an
leg is that it has released its blocks.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import (
    ErrorCode,
    Failure,
    LegUpdate,
    Prefilled,
    Stage,
    Start,
    Started,
    TokenDelta,
    Transferred,
)
from worker.engines.torch.grammar import Grammars
from worker.engines.torch.kv_transfer import KvPort, PullOutcome
from worker.engines.torch.limits import EngineLimits
from worker.engines.torch.sampler import SampledToken
from worker.engines.torch.scheduler import Scheduler
from worker.legs.hand_off import FirstToken, HandOffError, check_record, make_record
from worker.legs.leg import Leg, Link, Phase, Sequence

logger = logging.getLogger(__name__)

FINISHED = "the request finished on the prefill worker"


class Legs:
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
        self._legs: dict[tuple[Link, int], Leg] = {}
        self._unreleased: set[Leg] = set()
        self._updates: dict[Link, list[LegUpdate]] = {}
        self._num_arrived = 0
        self._is_draining = False

    @property
    def num_unreleased(self) -> int:
        """Legs that may hold blocks, ended ones among them."""
        return len(self._unreleased)

    @property
    def num_exports(self) -> int:
        return sum(leg.export is not None for leg in self._unreleased)

    @property
    def num_hand_offs(self) -> int:
        """Legs whose KV a decode worker will pull: queued, computed or waiting for it."""
        return sum(leg.can_hand_off for leg in self._unreleased)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def take_updates(self) -> dict[Link, list[LegUpdate]]:
        """What happened since the last call."""
        updates, self._updates = self._updates, {}
        return updates

    # --- what masters ask for

    def begin(self, link: Link, start: Start) -> None:
        if (link, start.leg) in self._legs:
            logger.warning("%s: leg %d was started twice", start.request_id, start.leg)
            return
        failure = self._refusal(start)
        if failure is not None:
            self._tell(link, LegUpdate(start.leg, failure=failure, ended=True))
            return
        self._num_arrived += 1
        leg = Leg(start, link, self._num_arrived, self._model_name, time.monotonic())
        if (grammar := start.sampling.grammar) is not None:
            for sequence in leg.sequences:
                sequence.grammar = self._grammars.matcher(grammar, start.sampling.stop_token_ids)
        self._legs[link, start.leg] = leg
        self._unreleased.add(leg)
        self._scheduler.add(leg.leader)

    def cancel(self, link: Link, number: int, index: int | None) -> None:
        leg = self._legs.get((link, number))
        if leg is None:
            return  # its end is on its way to the master
        for sequence in leg.unfinished:
            if index is None or sequence.index == index:
                sequence.finish_reason = FinishReason.CANCELLED
                if leg.phase is Phase.RUNNING and leg.is_prefilled:
                    self._scheduler.remove(sequence)
        if not leg.unfinished:
            self._end(leg, "cancelled")

    def decode_here(self, link: Link, number: int) -> None:
        leg = self._legs.get((link, number))
        if leg is None:
            # Unless it finished, its master takes the KV to be here still, and would wait for tokens.
            failure = Failure(ErrorCode.TRANSFER_FAILED, "the KV is gone")
            self._tell(link, LegUpdate(number, failure=failure))
        elif leg.stage is Stage.PREFILL:
            leg.stage = Stage.WHOLE
            if leg.export is not None:
                leg.export.abort("the prefill worker decodes this request itself")

    def drop_link(self, link: Link) -> None:
        """The master is gone: nobody wants its legs."""
        for leg in [leg for (owner, _), leg in self._legs.items() if owner is link]:
            self._end(leg, "the master disconnected")
        self._updates.pop(link, None)

    def drain(self) -> None:
        self._is_draining = True

    def end_all(self) -> None:
        for leg in list(self._legs.values()):
            self._end(leg, "the worker stops")

    def end_overdue(self, now_s: float) -> None:
        for leg in list(self._legs.values()):
            if now_s >= leg.deadline_s:
                limit_s = leg.start.time_limit_s
                self.fail(leg, ErrorCode.DEADLINE_EXCEEDED, f"not finished within {limit_s:g} s")

    # --- what the engine did

    def on_admitted(self, sequence: Sequence) -> None:
        """The sequence got its blocks; the first time, its leg begins."""
        leg = sequence.leg
        if leg.phase is not Phase.QUEUED:
            return
        leg.admitted_s = time.monotonic()
        leg.num_cached = min(sequence.num_computed, len(leg.start.prompt_ids))
        if leg.is_pull:
            leg.phase = Phase.PULLING
            self._begin_pull(leg)
        else:
            leg.phase = Phase.RUNNING
            if leg.can_hand_off:
                on_release = partial(self._post_export_released, leg)
                leg.export = self._port.export(leg.start.leg, on_release)
                self.publish_blocks(leg)
        handle = None if leg.export is None else leg.export.handle.encode()
        started = Started(leg.num_cached, leg.admitted_s - leg.arrived_s, handle)
        self._emit(leg, LegUpdate(leg.start.leg, started=started))

    def publish_blocks(self, leg: Leg, *, with_partial: bool = False) -> None:
        """Offer the blocks computed since the last call to the decode worker."""
        if leg.export is None:
            return
        sequence = leg.leader
        num_blocks = sequence.num_computed // self._scheduler.block_size
        if with_partial:
            num_blocks = len(sequence.blocks)
        leg.export.publish(sequence.blocks[leg.num_published : num_blocks])
        leg.num_published = num_blocks

    def report_prompt_logprobs(self, leg: Leg, first: int, entries: list[TokenLogprobs]) -> None:
        """`entries` are of the prompt tokens from position `first` on; those reported before are left out."""
        new = entries[leg.num_prompt_logprobs - first :]
        leg.num_prompt_logprobs += len(new)
        self._emit(leg, LegUpdate(leg.start.leg, prompt_logprobs=tuple(new)))

    def take_tokens(self, sequence: Sequence, tokens: list[SampledToken]) -> None:
        """The next token of a decoding sequence, or after a shared prefill the first of every one."""
        leg = sequence.leg
        takers = [sequence] if leg.is_prefilled else leg.sequences
        for taker, token in zip(takers, tokens, strict=True):
            self._append(taker, token.token_id, token.logprobs)
        if not leg.is_prefilled:
            first_tokens = [
                FirstToken(taker.index, token.token_id, token.logprobs)
                for taker, token in zip(takers, tokens, strict=True)
            ]
            self._on_prefilled(leg, first_tokens)
        elif sequence.finish_reason is not None:
            self._scheduler.remove(sequence)
        if not leg.unfinished:
            self._end(leg, FINISHED)

    def fail(self, leg: Leg, code: ErrorCode, message: str) -> None:
        if leg.phase is Phase.ENDED:
            return
        logger.warning("%s: leg %d failed: %s", leg.start.request_id, leg.start.leg, message)
        self._emit(leg, LegUpdate(leg.start.leg, failure=Failure(code, message)))
        self._end(leg, message)

    # --- hand-off

    def _begin_pull(self, leg: Leg) -> None:
        leader = leg.leader
        assert leg.start.kv_handle is not None
        on_end = partial(self._post_pull_ended, leg)
        num_skip = leader.num_computed // self._scheduler.block_size
        handle = KvHandle.decode(leg.start.kv_handle)
        leg.pull = self._port.pull(handle, num_skip, leader.blocks, on_end)

    def _on_prefilled(self, leg: Leg, first_tokens: list[FirstToken]) -> None:
        leg.is_prefilled = True
        num_computed = leg.leader.num_computed - leg.num_cached
        prefilled = Prefilled(num_computed, time.monotonic() - leg.admitted_s)
        self._emit(leg, LegUpdate(leg.start.leg, prefilled=prefilled))
        if leg.export is None:
            self._fan_out(leg)
            return
        self._scheduler.pause(leg.leader)
        leg.phase = Phase.HANDED_OFF
        # One that is told to decode here goes on when nobody reads its blocks any more.
        if leg.stage is Stage.PREFILL and leg.unfinished:
            self.publish_blocks(leg, with_partial=True)
            try:
                leg.export.seal(make_record(leg, first_tokens))
            except ValueError as error:
                self.fail(leg, ErrorCode.INTERNAL, str(error))

    def _on_export_released(self, leg: Leg, reason: ReleaseReason) -> None:
        leg.export = None
        if leg.phase is Phase.ENDED:
            self._release(leg)
        elif leg.stage is Stage.WHOLE:
            if leg.phase is Phase.HANDED_OFF:
                leg.phase = Phase.RUNNING
                self._fan_out(leg)
        elif reason is ReleaseReason.ACKNOWLEDGED:
            self._end(leg, "handed off")
        else:
            self.fail(leg, ErrorCode.TRANSFER_FAILED, f"nobody took the KV: {reason.value}")

    def _on_pull_ended(self, leg: Leg, outcome: PullOutcome) -> None:
        leg.pull = None
        if leg.phase is Phase.ENDED:
            self._release(leg)
            return
        if isinstance(outcome, TransferError):
            if outcome.reason is TransferFailure.ABORTED and outcome.text == FINISHED:
                self._end(leg, FINISHED)  # the prefill worker has told the master
            else:
                code = ErrorCode.PEER_UNREACHABLE if outcome.is_cut_off else ErrorCode.TRANSFER_FAILED
                self.fail(leg, code, str(outcome))
            return
        try:
            record = check_record(outcome.record, leg, self._limits.vocab_size)
        except HandOffError as error:
            self.fail(leg, ErrorCode.TRANSFER_FAILED, str(error))
            return
        transferred = Transferred(
            transport=outcome.transport.name.lower(),
            num_bytes=outcome.num_bytes,
            blocks_sent=outcome.num_blocks_sent,
            blocks_skipped=outcome.num_blocks_skipped,
            duration_s=outcome.duration_s,
            wait_s=outcome.wait_s,
        )
        self._emit(leg, LegUpdate(leg.start.leg, transferred=transferred))
        leg.is_prefilled = True
        leg.phase = Phase.RUNNING
        self._scheduler.receive(leg.leader)
        # The master may have had these from the prefill worker; should that one have died, it has them from here.
        for sequence, token in zip(leg.sequences, record.first_tokens, strict=True):
            self._append(sequence, token.token_id, token.logprobs)
        self._fan_out(leg)
        if not leg.unfinished:
            self._end(leg, FINISHED)

    def _fan_out(self, leg: Leg) -> None:
        """Decode every unfinished sequence from the KV that the leader computed or received."""
        leader = leg.leader
        for sequence in leg.unfinished:
            if sequence is leader:
                self._scheduler.run(leader)
            elif (partial_block := self._scheduler.fork(leader, sequence)) is not None:
                self._copy_block(*partial_block)
        if leader.finish_reason is not None:
            self._scheduler.remove(leader)

    # --- ends

    def _end(self, leg: Leg, text: str) -> None:
        if leg.phase is Phase.ENDED:
            return
        leg.phase = Phase.ENDED
        del self._legs[leg.link, leg.start.leg]
        for sequence in leg.sequences:
            self._scheduler.pause(sequence)
        if leg.export is not None:
            leg.export.abort(text)
        elif leg.pull is not None:
            leg.pull.cancel()
        else:
            self._release(leg)

    def _release(self, leg: Leg) -> None:
        for sequence in leg.sequences:
            self._scheduler.remove(sequence)
        self._unreleased.discard(leg)
        self._emit(leg, LegUpdate(leg.start.leg, ended=True))

    # --- small parts

    def _refusal(self, start: Start) -> Failure | None:
        if self._is_draining:
            return Failure(ErrorCode.UNAVAILABLE, "the worker is draining")
        if self._scheduler.num_waiting >= self._limits.max_queued:
            return Failure(ErrorCode.RESOURCE_EXHAUSTED, f"{self._scheduler.num_waiting} legs are queued")
        if start.stage is Stage.PREFILL and self.num_hand_offs >= self._limits.max_exports:
            return Failure(ErrorCode.RESOURCE_EXHAUSTED, f"{self.num_hand_offs} legs are for decode workers already")
        if start.kv_handle is not None:
            try:
                KvHandle.decode(start.kv_handle)
            except ValueError as error:
                return Failure(ErrorCode.TRANSFER_FAILED, f"kv_handle: {error}")
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
        self._emit(sequence.leg, LegUpdate(sequence.leg.start.leg, deltas=(delta,)))

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        params = sequence.leg.start.sampling
        if token_id in params.stop_token_ids:
            return FinishReason.STOP
        if sequence.grammar is not None and sequence.grammar.is_complete(sequence.output_ids):
            return FinishReason.STOP
        if sequence.num_output >= params.max_tokens or sequence.num_tokens >= self._limits.max_context:
            return FinishReason.LENGTH
        return None

    def _emit(self, leg: Leg, update: LegUpdate) -> None:
        self._tell(leg.link, update)

    def _tell(self, link: Link, update: LegUpdate) -> None:
        self._updates.setdefault(link, []).append(update)

    def _post_export_released(self, leg: Leg, reason: ReleaseReason) -> None:
        self._post(partial(self._on_export_released, leg, reason))

    def _post_pull_ended(self, leg: Leg, outcome: PullOutcome) -> None:
        self._post(partial(self._on_pull_ended, leg, outcome))
