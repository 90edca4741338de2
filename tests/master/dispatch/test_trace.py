"""R40: what stands before the first token adds up to it, whatever the request went through."""

import pytest

from master.dispatch.trace import RequestTrace
from master.output import Timeline
from protos.session_messages import LegUpdate, Prefilled, Stage, Started, TokenDelta, Transferred


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        self.now_s += duration_s


def parts_of(timeline: Timeline) -> float:
    return (
        timeline.admit_s
        + timeline.route_wait_s
        + timeline.retry_s
        + timeline.queue_s
        + timeline.prefill_s
        + timeline.link_s
        + timeline.answer_s
    )


def begun() -> tuple[RequestTrace, Clock]:
    clock = Clock()
    trace = RequestTrace(clock.now_s, clock)
    clock.advance(0.25)
    trace.admit()
    return trace, clock


def prefill(trace: RequestTrace, clock: Clock, *, queue_s: float = 0.5, prefill_s: float = 1.0) -> None:
    """A prefill worker gives the first token, a sixteenth of a second after it had it."""
    clock.advance(queue_s)
    trace.count("prefill-0", Stage.PREFILL, LegUpdate(1, started=Started(0, queue_s)))
    clock.advance(prefill_s + 0.0625)
    deltas = (TokenDelta(0, 0, (40,)),)
    trace.count("prefill-0", Stage.PREFILL, LegUpdate(1, prefilled=Prefilled(10, prefill_s), deltas=deltas))


def test_each_part_is_shown() -> None:
    trace, clock = begun()
    clock.advance(2.0)
    trace.wait(2.0)
    trace.begin_attempt()
    prefill(trace, clock)
    clock.advance(0.125)
    trace.answer()
    trace.count("decode-0", Stage.DECODE, LegUpdate(2, started=Started(0, 0.75)))
    trace.count("decode-0", Stage.DECODE, LegUpdate(2, transferred=Transferred("tcp", 64, 2, 1, 0.5, 0.25)))
    clock.advance(4.0)
    timeline = trace.timeline()
    assert (timeline.admit_s, timeline.route_wait_s, timeline.retry_s) == (0.25, 2.0, 0.0)
    assert (timeline.queue_s, timeline.prefill_s, timeline.link_s, timeline.answer_s) == (0.5, 1.0, 0.0625, 0.125)
    assert (timeline.decode_queue_s, timeline.transfer_s, timeline.transfer_wait_s) == (0.75, 0.5, 0.25)
    assert timeline.first_token_s == parts_of(timeline)
    assert (timeline.decode_s, timeline.total_s) == (4.0, timeline.first_token_s + 4.0)
    assert (timeline.prefill_instance, timeline.decode_instance, trace.num_workers) == ("prefill-0", "decode-0", 2)


def test_attempts_that_failed_before_the_first_token_are_a_part() -> None:
    trace, clock = begun()
    trace.begin_attempt()
    clock.advance(3.0)
    trace.count("prefill-1", Stage.PREFILL, LegUpdate(1, started=Started(0, 3.0)))
    clock.advance(1.0)
    trace.wait(1.0)
    trace.begin_attempt()
    prefill(trace, clock)
    trace.answer()
    timeline = trace.timeline()
    assert (timeline.retry_s, timeline.route_wait_s, timeline.queue_s, timeline.attempts) == (3.0, 1.0, 0.5, 2)
    assert timeline.first_token_s == pytest.approx(parts_of(timeline))


def test_what_comes_after_the_first_token_changes_no_part() -> None:
    trace, clock = begun()
    trace.begin_attempt()
    prefill(trace, clock)
    trace.answer()
    clock.advance(7.0)
    trace.wait(7.0)
    trace.begin_attempt()
    prefill(trace, clock, queue_s=9.0, prefill_s=9.0)
    timeline = trace.timeline()
    assert (timeline.resume_wait_s, timeline.route_wait_s, timeline.attempts) == (7.0, 0.0, 2)
    assert timeline.first_token_s == parts_of(timeline) == 0.25 + 0.5 + 1.0 + 0.0625


def test_a_prefill_that_is_reported_after_its_token_counts() -> None:
    trace, clock = begun()
    trace.begin_attempt()
    clock.advance(1.5)
    trace.count("decode-0", Stage.DECODE, LegUpdate(2, deltas=(TokenDelta(0, 0, (40,)),)))
    trace.count("prefill-0", Stage.PREFILL, LegUpdate(1, prefilled=Prefilled(10, 1.0)))
    trace.answer()
    timeline = trace.timeline()
    assert (timeline.prefill_s, timeline.link_s) == (1.0, 0.5)
