"""One attempt: on one worker, or on a prefill and a decode worker.

begin on the first worker --its prefill starts--> choose a decode worker --refused--> another, in the end the
first one itself --all samples finished--> done
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable

from master.attempt_trace import AttemptTrace
from master.progress import Progress
from master.request import GenerationRequest
from master.router import Route, pick_decode
from master.worker_session import Leg
from master.worker_view import PromptView, WorkerView
from master.workers import Workers
from protos.messages import AttemptUpdate, ErrorCode, Failure, KvSource, Stage, Start

MAX_REFUSALS = 3  # decode workers tried before the prefill worker decodes


class AttemptFailed(Exception):
    """The attempt ended before its samples did."""

    def __init__(self, failure: Failure, worker: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.worker = worker


class Attempt:
    """`samples` stand at the same tokens: `output_ids` after the prompt."""

    def __init__(
        self,
        request: GenerationRequest,
        samples: tuple[int, ...],
        output_ids: tuple[int, ...],
        route: Route,
        prompt: PromptView,
        *,
        workers: Workers,
        next_number: Callable[[], int],
        progress: Progress,
        trace: AttemptTrace,
    ) -> None:
        self._request = request
        self._samples = samples
        self._output_ids = output_ids
        self._route = route
        self._prompt = prompt
        self._workers = workers
        self._next_number = next_number
        self._progress = progress
        self._trace = trace
        self._updates: asyncio.Queue[tuple[Leg, AttemptUpdate]] = asyncio.Queue()
        self._legs: list[Leg] = []
        self._decode: Leg | None = None
        self._kv_source: KvSource | None = None
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Returns when every sample is finished. Raises AttemptFailed."""
        first = self._begin(self._route.worker, self._route.stage)
        try:
            while not self._is_finished():
                leg, update = await self._updates.get()
                self._trace.count(leg.worker, leg.start.stage, update)
                for delta in update.deltas:
                    self._progress.add(delta)
                if leg is first and update.started is not None and update.started.kv_source is not None:
                    self._kv_source = update.started.kv_source
                    self._begin_decode(first)
                if update.failure is not None:
                    self._on_failure(first, leg, update.failure)
        finally:
            for leg in self._legs:
                leg.session.end(leg)

    def finish_sample(self, index: int) -> None:
        """The sample needs no further token."""
        for leg in self._legs:
            if index in leg.unfinished:
                leg.session.cancel_sequence(leg, index)

    def _begin_decode(self, first: Leg) -> None:
        """On the best worker that has not refused; else on the one that computes the prompt."""
        views = [view for view in self._workers.views() if view.name not in self._refused]
        worker = None
        if len(self._refused) < MAX_REFUSALS:
            worker = pick_decode(views, self._route.worker, self._prompt, ())
        if worker is None:
            self._decode = None
            first.session.decode_here(first)
        else:
            self._decode = self._begin(worker, Stage.DECODE)

    def _on_failure(self, first: Leg, leg: Leg, failure: Failure) -> None:
        """Returns when the attempt can go on without the leg."""
        if leg is not first and leg is not self._decode:
            return
        if leg is self._decode and _is_refusal(leg, failure):
            self._refused.add(leg.worker)
            self._begin_decode(first)
        elif leg is self._decode or self._decode is None or not self._has_first_tokens():
            raise AttemptFailed(failure, leg.worker)

    def _begin(self, worker: WorkerView, stage: Stage) -> Leg:
        session = self._workers.session(worker.name)
        if session is None or not session.is_usable:
            raise AttemptFailed(Failure(ErrorCode.UNAVAILABLE, f"worker {worker.name} was lost"), worker.name)
        request = self._request
        sampling = request.sampling
        if self._trace.prompt_logprobs:
            sampling = dataclasses.replace(sampling, prompt_logprobs=None)  # an earlier attempt reported them
        start = Start(
            attempt=self._next_number(),
            request_id=request.id,
            stage=stage,
            prompt_ids=request.prompt_ids,
            output_ids=self._output_ids,
            sequences=self._samples,
            sampling=sampling,
            priority=request.priority,
            cache_salt=request.cache_salt,
            time_limit_s=request.arrived_s + request.time_limit_s - time.monotonic(),
            kv_source=self._kv_source,
        )
        uncached = self._prompt.num_tokens - self._prompt.cached_tokens(worker)
        leg = session.begin(start, self._on_update, uncached)
        self._legs.append(leg)
        return leg

    def _on_update(self, leg: Leg, update: AttemptUpdate) -> None:
        self._updates.put_nowait((leg, update))

    def _is_finished(self) -> bool:
        return all(self._progress.sequences[index].finish_reason is not None for index in self._samples)

    def _has_first_tokens(self) -> bool:
        """Whether the prefill worker has done its part, as far as tokens go."""
        start = len(self._output_ids)
        return all(len(self._progress.sequences[index].token_ids) > start for index in self._samples)


def _is_refusal(leg: Leg, failure: Failure) -> bool:
    """Whether the decode worker never got to decode, so that another may still pull the KV."""
    return not leg.has_prefilled and failure.code in (ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE)
