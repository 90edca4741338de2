"""One attempt: on one worker, or on a prefill and a decode worker.

    begin on the first worker --its prefill starts--> choose a decode worker --refused, or cut off--> another, in the
    end the first one itself --all sequences finished--> done

A decode worker that refused, or never reached the first one, has not taken the KV, so the first one still has it. After
any other failure nobody knows (it may just have been handed over), and a new attempt finds in the prefix caches what
there is.

What workers say is taken as it comes, in the session that it comes by: tokens go on and the decode worker is chosen
without a change of task. Only failures, and the end, are for `run`.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Collection

from master.dispatch.fault import AttemptFailed, Fault, fault_of, leaves_kv
from master.dispatch.leg_check import ImpossibleUpdate, LegCheck
from master.dispatch.parts import DispatchParts
from master.dispatch.token_progress import TokenProgress
from master.dispatch.trace import RequestTrace
from master.request import GenerationRequest
from master.routing.router import Route, holds_all
from master.routing.views import PromptView, WorkerView
from master.workers.leg import Leg
from protos.session_messages import ErrorCode, Failure, LegUpdate, Stage, Start, TokenDelta

MAX_REFUSALS = 3  # decode workers tried before the prefill worker decodes
ASK_AGAIN_S = 0.25  # where it can't, as its pool is too small


class Attempt:
    """`sequences` stand at the same tokens: `output_ids` after the prompt. No `avoided` worker is to decode."""

    def __init__(
        self,
        request: GenerationRequest,
        sequences: tuple[int, ...],
        output_ids: tuple[int, ...],
        route: Route,
        prompt: PromptView,
        *,
        parts: DispatchParts,
        progress: TokenProgress,
        trace: RequestTrace,
        avoided: Collection[str],
    ) -> None:
        self._request = request
        self._sequences = sequences
        self._output_ids = output_ids
        self._route = route
        self._prompt = prompt
        self._parts = parts
        self._progress = progress
        self._trace = trace
        self._began_s = time.monotonic()
        # a leg that failed, what the attempt itself fails with, or None: every sequence is finished
        self._events: asyncio.Queue[tuple[Leg, Failure] | AttemptFailed | None] = asyncio.Queue()
        self._is_over = False
        self._legs: dict[Leg, LegCheck] = {}
        self._first: Leg | None = None
        self._decode: Leg | None = None
        self._is_decode_wanted = False  # no worker would take it, so they are asked again
        self._kv_handle: bytes | None = None
        self._num_refusals = 0
        self._unwanted = set(avoided)
        self._num_prompt_logprobs = 0
        self._held_deltas: list[TokenDelta] = []  # came before the prompt's log-probabilities, from the other worker

    @property
    def worker(self) -> str:
        """The first one, which computes the prompt."""
        return self._route.worker.name

    async def run(self) -> None:
        """Returns when every sequence is finished. Raises AttemptFailed."""
        self._first = first = self._begin(self._route.worker, self._route.stage)
        try:
            while not self._is_finished():
                event = await self._next_event(first)
                if isinstance(event, AttemptFailed):
                    raise event
                if event is not None:
                    await self._on_failure(first, *event)
        finally:
            self._is_over = True
            for leg in self._legs:
                leg.end()
                if self._parts.suspects.end(self._request.id, leg.worker):
                    self._parts.routes.wake()

    def finish_sequence(self, index: int) -> None:
        """The sequence needs no further token."""
        for leg in self._legs:
            if index in leg.unfinished:
                leg.cancel_sequence(index)

    async def _next_event(self, first: Leg) -> tuple[Leg, Failure] | AttemptFailed | None:
        """Asks for a decode worker again from time to time, as long as one is wanted."""
        while self._is_decode_wanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_S):
                    return await self._events.get()
            self._begin_decode(first)
        return await self._events.get()

    def _on_update(self, leg: Leg, update: LegUpdate) -> None:
        if self._is_over:
            return
        try:
            self._take(leg, update)
            self._go_on(leg, update)
        except AttemptFailed as failed:
            self._is_over = True
            self._events.put_nowait(failed)
            return
        if update.failure is not None:
            self._events.put_nowait((leg, update.failure))
        elif update.deltas and self._is_finished():
            self._events.put_nowait(None)

    def _go_on(self, leg: Leg, update: LegUpdate) -> None:
        """Begins to decode as soon as prefill has begun, and lets the first worker go once it has handed over."""
        first = self._first
        assert first is not None, "nothing is heard of a leg before it has begun"
        if leg is first and update.started is not None and update.started.kv_handle is not None:
            self._kv_handle = update.started.kv_handle
            self._begin_decode(first)
            if self._is_decode_wanted:
                self._events.put_nowait(None)  # `run` has to ask again
        if update.failure is None and first.has_prefilled and self._has_kv_moved():
            first.release()

    def _take(self, leg: Leg, update: LegUpdate) -> None:
        check = self._legs[leg]
        had_generated = check.has_generated
        try:
            check.add(update)
        except ImpossibleUpdate as error:
            raise self._failed(leg, Failure(ErrorCode.INTERNAL, f"{leg.worker} sent {error}")) from error
        if check.has_generated and not had_generated:
            self._parts.health.generated(leg.worker, time.monotonic())
        if update.transferred is not None:
            self._parts.health.transferred(self._route.worker.name, leg.worker)
        self._trace.count(leg.worker, leg.start.stage, update)
        if update.prompt_logprobs:
            self._trace.add_prompt_logprobs(self._num_prompt_logprobs, update.prompt_logprobs)
            self._num_prompt_logprobs += len(update.prompt_logprobs)
        self._held_deltas += update.deltas
        if not self._lacks_prompt_logprobs():
            held, self._held_deltas = self._held_deltas, []
            for delta in held:
                self._progress.add(delta)
            if self._parts.suspects.progressed(self._request.id, self._progress.num_tokens):
                self._parts.routes.wake()

    def _begin_decode(self, first: Leg) -> None:
        """The best worker that is wanted decodes; else the one that computes the prompt, if it can hold it all."""
        can_decode_here = holds_all(self._route.worker, self._prompt)
        worker = None
        if self._num_refusals < MAX_REFUSALS or not can_decode_here:
            worker = self._parts.routes.pick_decode(self._request.id, self._route.worker, self._prompt, self._unwanted)
        self._is_decode_wanted = worker is None and not can_decode_here
        if worker is not None:
            self._parts.health.paired(self._route.worker.name, worker.name, time.monotonic())
            self._decode = self._begin(worker, Stage.DECODE)
            return
        self._decode = None
        if can_decode_here:
            first.decode_here()
        else:
            self._unwanted.clear()

    async def _on_failure(self, first: Leg, leg: Leg, failure: Failure) -> None:
        """Returns when the attempt can go on without the leg."""
        if leg is self._decode and leaves_kv(leg, failure):
            if fault_of(leg, failure) is Fault.TRANSFER:
                self._count_transfer_failure(leg, failure)
            else:
                self._num_refusals += 1
            self._unwanted.add(leg.worker)
            self._begin_decode(first)
        elif leg is self._decode:
            raise await self._blame(first, leg, failure)
        elif not self._has_kv_moved() or self._lacks_prompt_logprobs():
            raise self._failed(leg, failure)

    async def _blame(self, first: Leg, leg: Leg, failure: Failure) -> AttemptFailed:
        """A failed transfer is often the first sign that the prefill worker died, and that is what counts then."""
        if fault_of(leg, failure) is Fault.TRANSFER:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._parts.flags.blame_timeout_s):
                    while True:
                        event = await self._events.get()
                        if isinstance(event, AttemptFailed):
                            return event
                        if isinstance(event, tuple) and event[0] is first and first.is_lost:
                            return self._failed(*event)
        return self._failed(leg, failure)

    def _failed(self, leg: Leg, failure: Failure) -> AttemptFailed:
        """Tells those who choose workers whose fault it is."""
        fault, worker = fault_of(leg, failure), leg.worker
        if fault is Fault.TRANSFER and leg.start.stage is Stage.DECODE:
            self._count_transfer_failure(leg, failure)
        elif fault is Fault.TRANSFER and self._decode is not None:
            # The lease ended before the decode worker took the KV, which it had said it would.
            fault, worker = Fault.ENGINE, self._decode.worker
        if fault is Fault.ENGINE:
            self._parts.health.engine_failed(worker, time.monotonic(), failure.message)
        return AttemptFailed(failure, worker, fault, self._began_s)

    def _count_transfer_failure(self, leg: Leg, failure: Failure) -> None:
        now_s = time.monotonic()
        self._parts.health.transfer_failed(self._route.worker.name, leg.worker, now_s, failure.message)

    def _has_kv_moved(self) -> bool:
        """Whether the decode worker needs the first one no more."""
        return self._decode is not None and self._decode.has_prefilled

    def _lacks_prompt_logprobs(self) -> bool:
        wanted = self._request.sampling.prompt_logprobs is not None
        return wanted and len(self._trace.prompt_logprobs) < len(self._request.prompt_ids)

    def _begin(self, worker: WorkerView, stage: Stage) -> Leg:
        session = self._parts.workers.session(worker.name)
        if session is None or not session.is_usable:
            failure = Failure(ErrorCode.UNAVAILABLE, f"worker {worker.name} was lost")
            raise AttemptFailed(failure, worker.name, Fault.LEFT, self._began_s)
        request = self._request
        sampling = request.sampling
        if sampling.prompt_logprobs is not None and not self._lacks_prompt_logprobs():
            sampling = dataclasses.replace(sampling, prompt_logprobs=None)  # an earlier attempt reported them
        age_s = time.monotonic() - request.arrived_s
        start = Start(
            leg=next(self._parts.leg_numbers),
            request_id=request.id,
            stage=stage,
            prompt_ids=request.prompt_ids,
            output_ids=self._output_ids,
            sequences=self._sequences,
            sampling=sampling,
            priority=request.priority,
            cache_salt=request.cache_salt,
            time_limit_s=request.time_limit_s - age_s,
            kv_handle=self._kv_handle,
            age_s=age_s,
        )
        uncached = self._prompt.num_tokens - self._prompt.cached_tokens(worker)
        leg = session.begin(start, self._on_update, uncached)
        self._legs[leg] = LegCheck(start, self._parts.vocab_size)
        self._parts.health.asked(worker.name, time.monotonic())
        self._parts.suspects.begin(request.id, worker.name)
        return leg

    def _is_finished(self) -> bool:
        sequences = self._progress.sequences
        return all([sequences[index].finish_reason is not None for index in self._sequences])
