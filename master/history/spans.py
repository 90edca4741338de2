"""A request's timeline as bars, made of its events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from master.history.events import Event, EventKind
from master.output import Timeline

# What a worker reports at its end, by what is said of it.
_MEASURED = {
    EventKind.PREFILL_STARTED: "queue",
    EventKind.PREFILLED: "prefill",
    EventKind.TRANSFER_STARTED: "decode queue",
    EventKind.TRANSFERRED: "transfer",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds; `start_s` since the request's arrival. Attempt 0 is the master itself."""

    name: str
    attempt: int
    instance: str
    start_s: float
    duration_s: float
    detail: str = ""


def spans_of(events: Sequence[Event], timeline: Timeline) -> list[Span]:
    """In the order in which they began within each attempt."""
    spans = [Span("admit", 0, "", 0.0, timeline.admit_s)]
    begun = [event for event in events if event.kind is EventKind.ATTEMPT]
    if timeline.route_wait_s > 0.0 and begun:
        spans.append(Span("wait for a route", 0, "", timeline.admit_s, begun[0].at_s - timeline.admit_s))
    for beginning in begun:
        own = [event for event in events if event.attempt == beginning.attempt]
        spans += sorted(_attempt(beginning, own, timeline.total_s), key=lambda span: span.start_s)
    return spans


def _attempt(beginning: Event, events: Sequence[Event], total_s: float) -> Iterator[Span]:
    failed = next((event for event in events if event.kind is EventKind.FAILED), None)
    end_s = total_s if failed is None else failed.at_s
    detail = "" if failed is None else f"{failed.worker}: {failed.detail}"
    number = beginning.attempt
    yield Span("attempt", number, beginning.worker, beginning.at_s, end_s - beginning.at_s, detail)
    decoding: Event | None = None
    worker = beginning.worker
    for event in events:
        if event.kind in _MEASURED:
            start_s = max(beginning.at_s, event.at_s - event.duration_s)
            yield Span(_MEASURED[event.kind], number, event.worker, start_s, event.at_s - start_s, event.detail)
        if event.kind in (EventKind.PREFILLED, EventKind.FIRST_TOKEN):
            decoding = event
        if event.kind is EventKind.TRANSFERRED:
            worker = event.worker
    if decoding is not None:
        yield Span("decode", number, worker, decoding.at_s, max(0.0, end_s - decoding.at_s))
