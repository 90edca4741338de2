"""A session against a worker that speaks the real protocol but says what the test wants."""

import asyncio
import dataclasses
import itertools
import socket
import time
from types import TracebackType

import pytest

from master.routing.prefix_index import PrefixIndex
from master.workers.leg import Leg
from master.workers.session import WorkerSession
from master.workers.session_state import Patience, SessionState
from protos.sampling_messages import FinishReason, SamplingParams
from protos.session_identity import PROTOCOL
from protos.session_messages import (
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    ErrorCode,
    LegUpdate,
    LoadReport,
    Role,
    SnapshotRequest,
    Stage,
    Standing,
    Start,
)
from tests.reporting_worker import NAME, reporting_worker
from tests.scripted_worker import MASTER, PATIENCE_S, ScriptedWorker, finished, soon

STALLED = LoadReport(Role.MIX, is_stalled=True)


class Opened:
    """A session with a worker, running, as a context manager; `updates` of every leg begun with `begin`."""

    def __init__(self, worker: ScriptedWorker, silence_s: float = PATIENCE_S, quiet_s: float = PATIENCE_S) -> None:
        self.changes = 0
        self.updates: list[LegUpdate] = []
        self.session = WorkerSession(
            MASTER,
            worker.name,
            worker.address,
            patience=Patience(silence_s, quiet_s=quiet_s),
            on_change=self._on_change,
            on_load=lambda _: None,
            prefixes=PrefixIndex(),
        )
        self.task = asyncio.create_task(self.session.run())

    async def __aenter__(self) -> "Opened":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finished(self.task)

    def _on_change(self) -> None:
        self.changes += 1

    def begin(self, attempt: int, stage: Stage = Stage.WHOLE, sequences: tuple[int, ...] = (0,)) -> Leg:
        start = Start(attempt, f"req-{attempt}", stage, (1, 2, 3, 4, 5), SamplingParams(), sequences=sequences)
        return self.session.begin(start, lambda _, update: self.updates.append(update), uncached_tokens=5)

    async def until(self, is_usable: bool) -> None:
        await soon(lambda: self.session.is_usable is is_usable)


async def test_a_session_opens_and_an_attempt_runs_on_it() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        start = await worker.hear(Start)
        assert (start.leg, start.prompt_ids) == (1, (1, 2, 3, 4, 5))
        assert opened.session.num_legs == 1
        worker.emits(start, 0, 8, finish=FinishReason.STOP)
        await soon(lambda: len(opened.updates) == 1)
        assert opened.updates[0].deltas[0].token_ids == (8,)
        assert opened.session.num_legs == 0


async def test_messages_keep_their_order() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        leg = opened.begin(1, Stage.PREFILL, sequences=(0, 1))
        leg.cancel_sequence(1)
        leg.decode_here()
        opened.session.drain()
        leg.end()
        leg.end()
        await worker.hear(Start)
        assert await worker.hear(Cancel) == Cancel(1, 1)
        assert await worker.hear(DecodeHere) == DecodeHere(1)
        await worker.hear(Drain)
        assert await worker.hear(Cancel) == Cancel(1)


async def test_a_leg_that_is_over_is_not_cancelled() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        leg = opened.begin(1)
        worker.emits(await worker.hear(Start), 0, 8, finish=FinishReason.LENGTH)
        await soon(lambda: opened.session.num_legs == 0)
        leg.end()
        opened.session.drain()
        await worker.hear(Drain)


async def test_updates_of_an_ended_leg_are_ignored() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        leg, other = opened.begin(1), opened.begin(2)
        leg.end()
        starts = [await worker.hear(Start), await worker.hear(Start)]
        for start in starts:
            worker.emits(start, 0, 8)
        await soon(lambda: bool(opened.updates))
        assert [update.leg for update in opened.updates] == [other.start.leg]


async def test_a_worker_that_dies_fails_its_legs_and_is_found_again() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        await worker.hear(Start)
        await worker.die()
        await opened.until(is_usable=False)
        failure = opened.updates[-1].failure
        assert failure is not None
        assert failure.code is ErrorCode.UNAVAILABLE
        assert "mix-0" in failure.message
        assert opened.session.num_legs == 0
        async with worker.successor() as again:
            await opened.until(is_usable=True)
            assert again.num_sessions == 1


async def test_attempts_sent_to_a_worker_that_dies_do_not_end_the_session(caplog: pytest.LogCaptureFixture) -> None:
    """Writing into a call that is over raises something else than reading from it does."""
    async with ScriptedWorker("mix-0", Role.MIX) as first, Opened(first) as opened:
        worker, numbers = first, itertools.count(1)
        for _ in range(40):
            await opened.until(is_usable=True)
            dying = asyncio.create_task(worker.die())
            while opened.session.is_usable:
                opened.begin(next(numbers))
                await asyncio.sleep(0)
            await dying
            worker = await first.successor().__aenter__()
        await worker.die()
        assert not opened.task.done()
        assert "the session failed" not in caplog.text


async def test_a_silent_worker_is_lost() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker, silence_s=0.2) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        await soon(lambda: bool(opened.updates))
        failure = opened.updates[-1].failure
        assert failure is not None
        assert "silent" in failure.message


async def test_a_worker_that_misses_reports_gets_nothing_new_and_keeps_what_it_has() -> None:
    """R26"""
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker, quiet_s=0.2) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        start = await worker.hear(Start)
        await soon(lambda: opened.session.state is SessionState.QUIET)
        assert not opened.session.is_usable
        assert opened.updates == []
        worker.emits(start, 0, 8)
        await opened.until(is_usable=True)
        assert opened.updates[-1].failure is None


async def test_a_master_that_was_paused_blames_nobody() -> None:
    """R26: what its workers said meanwhile is read first."""
    async with reporting_worker() as address:
        changes: list[SessionState] = []
        session = WorkerSession(
            MASTER,
            NAME,
            address,
            patience=Patience(silence_s=0.5),
            on_change=lambda: changes.append(session.state),
            on_load=lambda _: None,
            prefixes=PrefixIndex(),
        )
        task = asyncio.create_task(session.run())
        await soon(lambda: session.is_usable)
        time.sleep(1.5)  # noqa: ASYNC251  the fault: nothing on this loop runs
        for _ in range(5):
            session.drain()  # also writing has a limit
            await asyncio.sleep(0.1)
        assert changes == [SessionState.OPEN]
        await finished(task)


async def test_a_stalled_worker_is_never_usable() -> None:
    """It is asked again and again; each time its first report must count before anything is sent to it."""
    async with ScriptedWorker("mix-0", Role.MIX, load=STALLED) as worker, Opened(worker) as opened:
        await soon(lambda: worker.num_sessions >= 3)
        assert opened.changes == 0
        assert not opened.session.is_usable


async def test_a_worker_that_stalls_fails_its_legs() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        worker.say(STALLED)
        await opened.until(is_usable=False)
        failure = opened.updates[-1].failure
        assert failure is not None
        assert failure.code is ErrorCode.UNAVAILABLE


async def test_another_worker_on_the_address_is_not_mistaken_for_this_one() -> None:
    async with ScriptedWorker("mix-0", Role.MIX, instance="mix-1") as worker, Opened(worker) as opened:
        await soon(lambda: worker.num_sessions >= 2)
        assert opened.changes == 0


async def test_a_listed_worker_may_have_any_name() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        session = WorkerSession(
            MASTER,
            worker.address,
            worker.address,
            patience=Patience(PATIENCE_S, quiet_s=PATIENCE_S),
            on_change=lambda: None,
            on_load=lambda _: None,
            prefixes=PrefixIndex(),
            is_name_known=False,
        )
        task = asyncio.create_task(session.run())
        await soon(lambda: session.is_usable)
        await finished(task)


@pytest.mark.parametrize("by_registry", [False, True])
async def test_a_draining_worker_takes_nothing_new_and_keeps_what_it_has(by_registry: bool) -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        start = await worker.hear(Start)
        if by_registry:
            opened.session.set_draining(True)
        else:
            worker.say(LoadReport(Role.MIX, is_draining=True))
        await opened.until(is_usable=False)
        worker.emits(start, 0, 9)
        await soon(lambda: bool(opened.updates))
        assert opened.updates[-1].failure is None


async def test_a_worker_whose_steps_fail_takes_itself_out_and_comes_back() -> None:
    """R1"""
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        worker.say(LoadReport(Role.MIX, failing_reason="not a number"))
        await opened.until(is_usable=False)
        assert (opened.session.shown_state, opened.session.shown_trouble) == ("failing", "not a number")
        worker.say(LoadReport(Role.MIX))
        await opened.until(is_usable=True)
        assert opened.changes == 3


async def test_the_cache_index_follows_the_worker() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        first, second, third = (bytes([n]) * 16 for n in range(3))
        worker.say(CacheEvents(1, stored=(first, second), is_snapshot=True))
        worker.say(CacheEvents(2, stored=(third,), removed=(first,)))
        await soon(lambda: opened.session.num_cached_blocks == 2 and third in opened.session.view().cached_blocks)
        assert set(opened.session.view().cached_blocks) == {second, third}
        worker.say(CacheEvents(3, stored=(first,), is_snapshot=True))
        await soon(lambda: opened.session.num_cached_blocks == 1)


async def test_missed_cache_events_are_asked_for_again() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        first, second = (bytes([n]) * 16 for n in range(2))
        worker.say(CacheEvents(1, stored=(first,), is_snapshot=True), CacheEvents(3, stored=(second,)))
        await worker.hear(SnapshotRequest)
        worker.say(CacheEvents(4, stored=(second,), is_snapshot=True))
        await soon(lambda: opened.session.view().cached_blocks == {second})


@pytest.mark.parametrize("changes", [{"protocol": PROTOCOL + 1}, {"version": "77.0"}])
async def test_a_worker_of_another_version_is_refused_and_told(
    changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """R22: one line, however often it is tried."""
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        worker.welcome = dataclasses.replace(worker.welcome, **changes)  # type: ignore[arg-type]
        async with Opened(worker) as opened:
            await soon(lambda: worker.num_sessions >= 3)
            assert opened.session.state is SessionState.REFUSED
            assert opened.changes == 0
            assert opened.session.trouble is not None
        assert {standing.refusal for standing in worker.standings} == {opened.session.trouble}
    lines = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [opened.session.trouble in line.getMessage() for line in lines] == [True]


async def test_an_address_that_answers_nobody_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """R33"""
    async with ScriptedWorker("mix-0", Role.MIX) as worker:
        await worker.die()
        async with Opened(worker) as opened:
            await soon(lambda: opened.session.trouble is not None)
            async with worker.successor():
                await opened.until(is_usable=True)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([line for line in lines if worker.address in line and "failed to connect" in line]) == 1


async def test_a_retired_session_ends_with_its_last_leg() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        leg = opened.begin(1)
        await worker.hear(Start)
        opened.session.retire("superseded")
        assert not opened.session.is_usable
        await soon(lambda: worker.standings == [Standing(), Standing("superseded")])
        assert not opened.task.done()
        leg.end()
        await opened.task
        assert await worker.hear(Cancel) == Cancel(1)


async def test_what_was_sent_counts_before_the_worker_reports_it() -> None:
    async with ScriptedWorker("prefill-0", Role.PREFILL) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1, Stage.PREFILL)
        start = await worker.hear(Start)
        view = opened.session.view()
        assert (view.queued_prefill_tokens, view.running_sequences, view.available_blocks) == (5, 1, 98)
        worker.begins(start)
        await soon(lambda: opened.session.view().available_blocks == 100)
        worker.prefills(start, 4)
        await soon(lambda: opened.session.view().queued_prefill_tokens == 0)


async def test_ending_the_session_fails_its_legs() -> None:
    async with ScriptedWorker("mix-0", Role.MIX) as worker, Opened(worker) as opened:
        await opened.until(is_usable=True)
        opened.begin(1)
        await finished(opened.task)
        assert opened.updates[-1].failure is not None
        assert not opened.session.is_usable


async def test_an_address_where_nobody_listens_is_tried_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    async with ScriptedWorker("mix-0", Role.MIX, port=0) as placeholder:
        placeholder.address = f"127.0.0.1:{port}"
        opened = Opened(placeholder)
        async with ScriptedWorker("mix-0", Role.MIX, port=port) as worker:
            await opened.until(is_usable=True)
            assert worker.num_sessions == 1
