"""Requests as the page lists and shows them."""

from collections.abc import Iterable
from dataclasses import dataclass

from master.history.log import RequestLog
from master.history.record import RequestRecord
from master.history.spans import Span

LIST_LENGTH = 25


@dataclass(frozen=True, slots=True)
class RequestRow:
    id: str
    arrived_unix_s: float
    outcome: str
    error: str
    prompt_tokens: int
    completion_tokens: int
    first_token_s: float
    total_s: float
    attempts: int
    prefill_instance: str
    decode_instance: str


@dataclass(frozen=True, slots=True)
class RequestLists:
    recent: list[RequestRow]
    slow: list[RequestRow]
    failed: list[RequestRow]


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """`is_running`: what is here is not the end of it."""

    record: RequestRecord
    tpot_s: float | None
    spans: list[Span]
    is_running: bool


def lists_of(log: RequestLog) -> RequestLists:
    recent = list(log.recent)
    slow = sorted(recent, key=lambda record: record.timeline.total_s, reverse=True)
    return RequestLists(
        recent=_rows(reversed(recent[-LIST_LENGTH:])),
        slow=_rows(slow[:LIST_LENGTH]),
        failed=_rows(reversed(list(log.failed)[-LIST_LENGTH:])),
    )


def detail_of(record: RequestRecord) -> RequestDetail:
    return RequestDetail(record, record.tpot_s, record.spans, record.outcome is None)


def _rows(records: Iterable[RequestRecord]) -> list[RequestRow]:
    return [_row(record) for record in records]


def _row(record: RequestRecord) -> RequestRow:
    timeline = record.timeline
    return RequestRow(
        id=record.id,
        arrived_unix_s=record.arrived_unix_s,
        outcome="running" if record.outcome is None else record.outcome.value,
        error=record.error,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        first_token_s=timeline.first_token_s,
        total_s=timeline.total_s,
        attempts=timeline.attempts,
        prefill_instance=timeline.prefill_instance,
        decode_instance=timeline.decode_instance,
    )
