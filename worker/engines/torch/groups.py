"""The life of the groups in the engine, from `add` to the release of their blocks. Engine thread only.

Blocks are released in one place, `_release`, and only when nobody reads or writes them any more: an export or a pull
that still runs delays it until its own end is reported.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.export import ReleaseReason
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.pull import TransferResult
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import ErrorCode, Failure, Stage, TokenDelta, Transferred
from worker.engines.compute_engine import EngineSink, FirstToken, HandOffError, Run
from worker.engines.torch.grammar import GrammarError, Grammars
from worker.engines.torch.kv_transfer import KvPort, PullOutcome
from worker.engines.torch.sampling.sampler import SampledToken
from worker.engines.torch.scheduler import Scheduler
from worker.engines.torch.sequence import Phase, Sequence, SequenceGroup

FINISHED = "the request finished on the prefill worker"


class SequenceGroups:
    """`post` runs a command on the engine thread; `copy_block(source, destination)` copies KV within the pool."""

    def __init__(
        self,
        scheduler: Scheduler,
        port: KvPort,
        grammars: Grammars,
        sink: EngineSink,
        *,
        post: Callable[[Callable[[], None]], None],
        copy_block: Callable[[int, int], None],
    ) -> None:
        self._scheduler = scheduler
        self._port = port
        self._grammars = grammars
        self._sink = sink
        self._post = post
        self._copy_block = copy_block
        self._groups: dict[Run, SequenceGroup] = {}  # until they are released

    def __len__(self) -> int:
        """Groups that may hold blocks, ended ones among them."""
        return len(self._groups)

    @property
    def num_exports(self) -> int:
        return sum(group.export is not None for group in self._groups.values())

    def add(self, run: Run) -> None:
        group = self._groups[run] = SequenceGroup(run)
        if run.sampling.grammar is None:
            self._scheduler.add(group.leader)
            return
        for sequence in group.sequences:
            sequence.grammar = matcher = self._grammars.matcher(run.sampling.grammar, run.sampling.stop_token_ids)
        # A step would wait for the grammar, and everybody's decode with it.
        matcher.when_compiled(partial(self._post, partial(self._on_compiled, group)))

    def cancel(self, run: Run, index: int) -> None:
        group = self._groups.get(run)
        if group is None or group.phase is Phase.ENDED:
            return
        for sequence in group.unfinished:
            if sequence.index == index:
                sequence.finish_reason = FinishReason.CANCELLED
                if group.phase is Phase.DECODING:
                    self._scheduler.remove(sequence)
        if not group.unfinished:
            self._end(group, "cancelled")

    def abort(self, run: Run, text: str) -> None:
        if (group := self._groups.get(run)) is not None:
            self._end(group, text)

    def decode_here(self, run: Run) -> bool:
        group = self._groups.get(run)
        if group is None or group.phase is Phase.ENDED:
            return False
        if group.stage is Stage.PREFILL:
            group.stage = Stage.WHOLE
            if group.export is not None:
                group.export.abort("the prefill worker decodes this request itself")
        return True

    def end_all(self) -> None:
        for group in list(self._groups.values()):
            self._end(group, "the worker stops")

    def on_admitted(self, sequence: Sequence) -> None:
        """The sequence got its blocks; the first time, its group begins."""
        group = sequence.group
        if group.phase is not Phase.QUEUED:
            return
        group.num_cached = min(sequence.num_computed, len(group.run.prompt_ids))
        if group.is_pull:
            group.phase = Phase.PULLING
            self._begin_pull(group)
        else:
            group.phase = Phase.PREFILLING
            if group.can_hand_off:
                group.export = self._port.export(group.run.number, partial(self._post_export_released, group))
                self.publish_blocks(group)
        handle = None if group.export is None else group.export.handle.encode()
        self._sink.admitted(group.run, group.num_cached, handle)

    def publish_blocks(self, group: SequenceGroup, *, with_partial: bool = False) -> None:
        """Offer the blocks computed since the last call to the decode worker."""
        if group.export is None:
            return
        sequence = group.leader
        num_blocks = sequence.num_computed // self._scheduler.block_size
        if with_partial:
            num_blocks = len(sequence.blocks)
        group.export.publish(sequence.blocks[group.num_published : num_blocks])
        group.num_published = num_blocks

    def report_prompt_logprobs(self, group: SequenceGroup, first: int, entries: list[TokenLogprobs]) -> None:
        """`entries` are of the prompt tokens from position `first` on; those reported before are left out."""
        new = entries[group.num_prompt_logprobs - first :]
        group.num_prompt_logprobs += len(new)
        self._sink.prompt_logprobs(group.run, new)

    def take_tokens(self, sequence: Sequence, tokens: list[SampledToken]) -> None:
        """The next token of a decoding sequence, or after a shared prefill the first of every one."""
        group = sequence.group
        if group.is_prefilled:
            (token,) = tokens
            self._append(sequence, token.token_id, token.logprobs)
            if sequence.finish_reason is not None:
                self._scheduler.remove(sequence)
        else:
            chosen = zip(group.sequences, tokens, strict=True)
            self._on_prefilled(
                group, [FirstToken(taker.index, token.token_id, token.logprobs) for taker, token in chosen]
            )
        if not group.unfinished:
            self._end(group, FINISHED)

    def fail(self, group: SequenceGroup, code: ErrorCode, message: str) -> None:
        if group.phase is Phase.ENDED:
            return
        if code is ErrorCode.INTERNAL:
            # What its KV was built on may be why, so none of that stays in the prefix cache.
            for sequence in group.sequences:
                self._scheduler.pool.forget(sequence.hashes)
        self._sink.failed(group.run, Failure(code, message))
        self._end(group, message)

    def _on_compiled(self, group: SequenceGroup) -> None:
        if group.phase is not Phase.QUEUED:
            return
        try:
            for sequence in group.sequences:
                assert sequence.grammar is not None
                sequence.grammar.check(sequence.output_ids)
        except GrammarError as error:
            self.fail(group, error.code, str(error))
        else:
            self._scheduler.add(group.leader)

    def _begin_pull(self, group: SequenceGroup) -> None:
        leader = group.leader
        assert group.run.kv_handle is not None
        num_skip = leader.num_computed // self._scheduler.block_size
        handle = KvHandle.decode(group.run.kv_handle)
        group.pull = self._port.pull(handle, num_skip, leader.blocks, partial(self._post_pull_ended, group))

    def _on_prefilled(self, group: SequenceGroup, first_tokens: list[FirstToken]) -> None:
        self._sink.prefilled(group.run, group.leader.num_computed - group.num_cached)
        self._take_first(group, first_tokens)
        if group.export is None:
            self._fan_out(group)
            return
        self._scheduler.pause(group.leader)
        group.phase = Phase.HANDED_OFF
        # One that is told to decode here goes on when nobody reads its blocks any more.
        if group.stage is Stage.PREFILL and group.unfinished:
            self.publish_blocks(group, with_partial=True)
            try:
                group.export.seal(self._sink.hand_off_record(group.run, first_tokens))
            except ValueError as error:
                self.fail(group, ErrorCode.INTERNAL, str(error))

    def _on_export_released(self, group: SequenceGroup, reason: ReleaseReason) -> None:
        group.export = None
        if group.phase is Phase.ENDED:
            self._release(group)
        elif group.stage is Stage.WHOLE:
            if group.phase is Phase.HANDED_OFF:
                self._fan_out(group)
        elif reason is ReleaseReason.ACKNOWLEDGED:
            self._end(group, "handed off")
        else:
            self.fail(group, ErrorCode.TRANSFER_FAILED, f"nobody took the KV: {reason.value}")

    def _on_pull_ended(self, group: SequenceGroup, outcome: PullOutcome) -> None:
        group.pull = None
        if group.phase is Phase.ENDED:
            self._release(group)
        elif isinstance(outcome, TransferResult):
            self._on_pulled(group, outcome)
        elif outcome.reason is TransferFailure.ABORTED and outcome.text == FINISHED:
            self._end(group, FINISHED)  # the prefill worker has told the master
        else:
            code = ErrorCode.PEER_UNREACHABLE if outcome.is_cut_off else ErrorCode.TRANSFER_FAILED
            self.fail(group, code, str(outcome))

    def _on_pulled(self, group: SequenceGroup, result: TransferResult) -> None:
        try:
            first_tokens = self._sink.received(group.run, _transferred(result), result.record)
        except HandOffError as error:
            self.fail(group, ErrorCode.TRANSFER_FAILED, str(error))
            return
        self._scheduler.receive(group.leader)
        # The master may have had these from the prefill worker; should that one have died, it has them from here.
        self._take_first(group, first_tokens)
        self._fan_out(group)
        if not group.unfinished:
            self._end(group, FINISHED)

    def _take_first(self, group: SequenceGroup, first_tokens: Items[FirstToken]) -> None:
        for sequence, token in zip(group.sequences, first_tokens, strict=True):
            self._append(sequence, token.token_id, token.logprobs)

    def _fan_out(self, group: SequenceGroup) -> None:
        """Decode every unfinished sequence from the KV that the leader computed or received."""
        group.phase = Phase.DECODING
        leader = group.leader
        for sequence in group.unfinished:
            if sequence is leader:
                self._scheduler.run(leader)
            elif (partial_block := self._scheduler.fork(leader, sequence)) is not None:
                self._copy_block(*partial_block)
        if leader.finish_reason is not None:
            self._scheduler.remove(leader)

    def _end(self, group: SequenceGroup, text: str) -> None:
        if group.phase is Phase.ENDED:
            return
        group.phase = Phase.ENDED
        for sequence in group.sequences:
            self._scheduler.pause(sequence)
        if group.export is not None:
            group.export.abort(text)
        elif group.pull is not None:
            group.pull.cancel()
        else:
            self._release(group)

    def _release(self, group: SequenceGroup) -> None:
        for sequence in group.sequences:
            self._scheduler.remove(sequence)
        del self._groups[group.run]
        self._sink.released(group.run)

    def _append(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> None:
        if sequence.finish_reason is not None:
            return  # cancelled while the step ran
        position = sequence.num_output
        sequence.append(token_id)
        sequence.finish_reason = sequence.reason_to_finish()
        delta = TokenDelta(
            sequence=sequence.index,
            position=position,
            token_ids=(token_id,),
            logprobs=() if logprobs is None else (logprobs,),
            finish_reason=sequence.finish_reason,
        )
        self._sink.emitted(sequence.group.run, delta)

    def _post_export_released(self, group: SequenceGroup, reason: ReleaseReason) -> None:
        self._post(partial(self._on_export_released, group, reason))

    def _post_pull_ended(self, group: SequenceGroup, outcome: PullOutcome) -> None:
        self._post(partial(self._on_pull_ended, group, outcome))


def _transferred(result: TransferResult) -> Transferred:
    return Transferred(
        transport=result.transport,
        num_bytes=result.num_bytes,
        blocks_sent=result.num_blocks_sent,
        blocks_skipped=result.num_blocks_skipped,
        duration_s=result.duration_s,
        wait_s=result.wait_s,
    )
