"""The life of the legs on one worker, from `begin` until the engine has released what they held.

The session's tasks ask; what they ask happens on the engine thread, before the engine's next step. There this is also
the engine's sink: what masters are told gathers, and goes out when the engine has turned. The last of a leg is that
nothing is held for it any more.
"""

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from functools import partial

from kvcache.block_pool import CacheEvent, CacheEventKind
from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import TokenLogprobs
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
from worker.engines.compute_engine import ComputeEngine, FirstToken, Run
from worker.legs.cache_news import CacheNews, cache_news
from worker.legs.hand_off import check_record, make_record
from worker.legs.leg import Leg, LegPhase, Link
from worker.legs.leg_limits import LegCounts, LegLimits
from worker.legs.step_health import StepHealth

logger = logging.getLogger(__name__)


class Legs:
    """`engine` must be started with these legs as its sink."""

    def __init__(self, engine: ComputeEngine, limits: LegLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._health = StepHealth(self.begin, engine.limits.max_context)
        self._links: set[Link] = {self._health}
        self._legs: dict[tuple[Link, int], Leg] = {}  # until they end
        self._unreleased: dict[Run, Leg] = {}
        self._updates: dict[Link, list[LegUpdate]] = {}
        self._num_runs = 0
        self._is_draining = False
        self._num_failures = dict.fromkeys(ErrorCode, 0)
        self._idle_calls: list[Callable[[], None]] = []

    @property
    def num_unreleased(self) -> int:
        """Legs for which something may be held, ended ones among them."""
        return len(self._unreleased)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def failing_reason(self) -> str | None:
        """Why no leg is taken: the engine's steps fail, one after another."""
        return self._health.failing_reason

    @property
    def num_failures(self) -> Mapping[ErrorCode, int]:
        """Legs that were refused or failed, since the start."""
        return self._num_failures

    # What masters ask for; on any thread.

    def attach(self, link: Link) -> None:
        """A master connected; it gets a snapshot of the prefix cache."""
        self._engine.post(partial(self._attach, link))

    def detach(self, link: Link) -> None:
        """The master is gone: nobody wants its legs."""
        self._engine.post(partial(self._detach, link))

    def send_snapshot(self, link: Link) -> None:
        """The master missed changes of the prefix cache."""
        self._engine.post(partial(self._send_snapshot, link))

    def begin(self, link: Link, start: Start) -> None:
        self._engine.post(partial(self._begin, link, start, time.monotonic()))

    def cancel(self, link: Link, number: int, sequence: int | None) -> None:
        """Unknown legs are ignored: their end is on its way to the master."""
        self._engine.post(partial(self._cancel, link, number, sequence))

    def decode_here(self, link: Link, number: int) -> None:
        self._engine.post(partial(self._decode_here, link, number))

    def drain(self) -> None:
        """Refuse legs from now on."""
        self._engine.post(self._drain)

    def when_idle(self, call: Callable[[], None]) -> None:
        """`call` comes once, on the engine thread, as soon as nothing is held for any leg."""
        self._engine.post(partial(self._idle_calls.append, call))

    def _attach(self, link: Link) -> None:
        snapshot = self._engine.cached_blocks()  # first, for it has the links there are told of what is in it
        self._links.add(link)
        link.deliver_cache_snapshot(snapshot)

    def _send_snapshot(self, link: Link) -> None:
        link.deliver_cache_snapshot(self._engine.cached_blocks())

    def _detach(self, link: Link) -> None:
        self._links.discard(link)
        for leg in [leg for (owner, _), leg in self._legs.items() if owner is link]:
            self._abort(leg, "the master disconnected")
        self._updates.pop(link, None)

    def _begin(self, link: Link, start: Start, arrived_s: float) -> None:
        if (link, start.leg) in self._legs:
            logger.warning("%s: leg %d was started twice", start.request_id, start.leg)
            return
        try:
            handle = None if start.kv_handle is None else KvHandle.decode(start.kv_handle)
        except ValueError as error:
            failure: Failure | None = Failure(ErrorCode.TRANSFER_FAILED, f"kv_handle: {error}")
        else:
            failure = self._refusal(link, start)
        if failure is not None:
            self._tell(link, LegUpdate(start.leg, failure=failure, ended=True))
            return
        self._num_runs += 1
        run = Run.of(start, self._num_runs, self._engine.identity.model.identity, arrived_s)
        wait_s = None if handle is None else self._limits.pull_wait_s(handle.lease_s)
        leg = Leg(start, link, run, arrived_s, wait_s)
        self._legs[link, start.leg] = self._unreleased[run] = leg
        self._engine.add(run)

    def _cancel(self, link: Link, number: int, sequence: int | None) -> None:
        leg = self._legs.get((link, number))
        if leg is None:
            return
        if sequence is None:
            self._abort(leg, "cancelled")
        elif sequence in leg.unfinished:
            self._finish(leg, sequence)
            self._engine.cancel(leg.run, sequence)

    def _decode_here(self, link: Link, number: int) -> None:
        leg = self._legs.get((link, number))
        refusal = None if leg is None else self._engine.limits.decode_refusal(leg.start)
        if leg is not None and refusal is not None:
            self._give_up(leg, refusal)
        elif leg is None or not self._engine.decode_here(leg.run):
            # Unless it finished, its master takes the KV to be here still, and would wait for tokens.
            failure = Failure(ErrorCode.TRANSFER_FAILED, "the KV is gone")
            self._tell(link, LegUpdate(number, failure=failure))
        else:
            leg.stage = Stage.WHOLE

    def _drain(self) -> None:
        self._is_draining = True

    # What the engine tells, on its thread.

    def admitted(self, run: Run, cached_tokens: int, kv_handle: bytes | None) -> None:
        leg = self._unreleased[run]
        leg.phase = LegPhase.RUNNING
        leg.admitted_s = time.monotonic()
        started = Started(cached_tokens, leg.admitted_s - leg.arrived_s, kv_handle)
        self._emit(leg, LegUpdate(leg.start.leg, started=started))

    def prefilled(self, run: Run, computed_tokens: int) -> None:
        leg = self._unreleased[run]
        prefilled = Prefilled(computed_tokens, time.monotonic() - leg.admitted_s)
        self._emit(leg, LegUpdate(leg.start.leg, prefilled=prefilled))
        if leg.stage is Stage.PREFILL:
            self._health.leg_done()

    def hand_off_record(self, run: Run, first_tokens: Items[FirstToken]) -> bytes:
        return make_record(run, first_tokens)

    def received(self, run: Run, transferred: Transferred, record: bytes) -> Items[FirstToken]:
        checked = check_record(record, run, self._engine.limits.vocab_size)
        leg = self._unreleased[run]
        self._emit(leg, LegUpdate(leg.start.leg, transferred=transferred))
        return checked.first_tokens

    def emitted(self, run: Run, delta: TokenDelta) -> None:
        leg = self._unreleased[run]
        self._emit(leg, LegUpdate(leg.start.leg, deltas=(delta,)))
        if delta.finish_reason is not None:
            self._finish(leg, delta.sequence)
            if not leg.unfinished:
                self._health.leg_done()

    def prompt_logprobs(self, run: Run, entries: Items[TokenLogprobs]) -> None:
        leg = self._unreleased[run]
        self._emit(leg, LegUpdate(leg.start.leg, prompt_logprobs=tuple(entries)))

    def failed(self, run: Run, failure: Failure) -> None:
        if failure.code is ErrorCode.INTERNAL:
            self._health.step_failed(failure.message)
        self._fail(self._unreleased[run], failure)

    def released(self, run: Run) -> None:
        leg = self._unreleased.pop(run)
        self._end(leg)
        self._tell(leg.link, LegUpdate(leg.start.leg, ended=True))

    def turned(self, cache_events: Items[CacheEvent]) -> None:
        news = self._news(cache_events)
        now_s = time.monotonic()
        self._end_overdue(now_s)
        self._health.turned(now_s)
        updates, self._updates = self._updates, {}
        for link in updates.keys() & self._links if news is None else self._links:
            link.deliver(updates.get(link, []), news)
        while self._idle_calls and not self._unreleased:
            self._idle_calls.pop()()

    def _news(self, cache_events: Items[CacheEvent]) -> CacheNews | None:
        if not any(event.kind is CacheEventKind.RESET for event in cache_events):
            return cache_news(cache_events)
        snapshot = self._engine.cached_blocks()
        for link in self._links:
            link.deliver_cache_snapshot(snapshot)
        return None

    def _refusal(self, link: Link, start: Start) -> Failure | None:
        if self._is_draining:
            return Failure(ErrorCode.UNAVAILABLE, "the worker is draining")
        if self.failing_reason is not None and link is not self._health:
            return Failure(ErrorCode.UNAVAILABLE, f"the worker's steps fail: {self.failing_reason}")
        return self._limits.refusal(start.stage, self._counts()) or self._engine.limits.refusal(start)

    def _counts(self) -> LegCounts:
        return LegCounts(
            num_queued=sum(leg.phase is LegPhase.QUEUED for leg in self._legs.values()),
            num_queued_pulls=sum(leg.is_queued_pull for leg in self._legs.values()),
            num_hand_offs=sum(leg.can_hand_off for leg in self._unreleased.values()),
        )

    def _end_overdue(self, now_s: float) -> None:
        for leg in list(self._legs.values()):
            if (failure := leg.overdue(now_s)) is not None:
                self._give_up(leg, failure)

    def _fail(self, leg: Leg, failure: Failure) -> None:
        logger.warning("%s: leg %d failed: %s", leg.start.request_id, leg.start.leg, failure.message)
        self._emit(leg, LegUpdate(leg.start.leg, failure=failure))
        self._end(leg)

    def _give_up(self, leg: Leg, failure: Failure) -> None:
        self._fail(leg, failure)
        self._engine.abort(leg.run, failure.message)

    def _abort(self, leg: Leg, text: str) -> None:
        self._end(leg)
        self._engine.abort(leg.run, text)

    def _finish(self, leg: Leg, sequence: int) -> None:
        leg.unfinished.discard(sequence)
        if not leg.unfinished:
            self._end(leg)

    def _end(self, leg: Leg) -> None:
        """Its master is told nothing more of it, but that it ended."""
        if leg.phase is not LegPhase.ENDING:
            leg.phase = LegPhase.ENDING
            del self._legs[leg.link, leg.start.leg]

    def _emit(self, leg: Leg, update: LegUpdate) -> None:
        if leg.phase is not LegPhase.ENDING:
            self._tell(leg.link, update)

    def _tell(self, link: Link, update: LegUpdate) -> None:
        if update.failure is not None and link is not self._health:
            self._num_failures[update.failure.code] += 1
        self._updates.setdefault(link, []).append(update)
