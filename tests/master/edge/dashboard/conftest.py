"""A cluster of fifty instances, and requests that went through it."""

from dataclasses import replace

import pytest

from master.history.events import Event, EventKind
from master.history.record import Outcome, RequestRecord
from master.output import Timeline
from master.service import InstanceView
from protos.session_messages import LoadReport, Role, TransferCounters
from tests.http_service import HttpService
from tests.scripted_service import INSTANCE

TIMELINE = Timeline(
    admit_s=0.01,
    route_wait_s=0.2,
    retry_s=0.5,
    queue_s=0.05,
    prefill_s=0.4,
    link_s=0.01,
    first_token_s=1.2,
    decode_queue_s=0.02,
    transfer_s=0.3,
    decode_s=2.0,
    total_s=3.2,
    transport="tcp",
    transfer_bytes=3_000_000,
    blocks_sent=12,
    prefill_instance="prefill-1",
    decode_instance="decode-0",
    attempts=2,
)
EVENTS = (
    Event(EventKind.ATTEMPT, 0.21, 1, "prefill-0"),
    Event(EventKind.PREFILL_STARTED, 0.3, 1, "prefill-0", 0.08),
    Event(EventKind.FAILED, 0.7, 1, "prefill-0", detail="lost"),
    Event(EventKind.ATTEMPT, 0.71, 2, "prefill-1"),
    Event(EventKind.PREFILL_STARTED, 0.77, 2, "prefill-1", 0.05),
    Event(EventKind.TRANSFER_STARTED, 0.8, 2, "decode-0", 0.02),
    Event(EventKind.FIRST_TOKEN, 1.19, 2, "prefill-1"),
    Event(EventKind.PREFILLED, 1.19, 2, "prefill-1", 0.4),
    Event(EventKind.TRANSFERRED, 1.25, 2, "decode-0", 0.3, "3000000 bytes, tcp"),
)


def record(number: int, outcome: Outcome = Outcome.FINISHED, error: str = "") -> RequestRecord:
    return RequestRecord(
        id=f"req-{number}",
        answer_id=f"chatcmpl-req-{number}",
        name=f"name-{number}",
        model="demo/model",
        arrived_unix_s=1_700_000_000.0 + number,
        outcome=outcome,
        error=error,
        message="",
        finish_reasons=("stop",) if outcome is Outcome.FINISHED else (),
        prompt_tokens=100,
        completion_tokens=21,
        cached_tokens=32,
        priority=0,
        sampling={"n": 1, "max_tokens": 64, "temperature": 0.7},
        timeline=replace(TIMELINE, total_s=3.2 + number / 100),
        events=EVENTS,
    )


def instance(number: int) -> InstanceView:
    role = Role.PREFILL if number % 2 else Role.DECODE
    return replace(
        INSTANCE,
        name=f"{role.name.lower()}-{number // 2}",
        role=role,
        address=f"10.0.0.{number}:7777",
        version="0.1.0",
        load=LoadReport(
            role=role,
            running_sequences=number,
            available_blocks=96 - number,
            held_blocks=number,
            decode_step_s=0.02,
            transfer=TransferCounters(bytes_received=number * 1000),
        ),
    )


@pytest.fixture
def service() -> HttpService:
    service = HttpService()
    service.views = [instance(number) for number in range(48)]
    service.views += [
        replace(INSTANCE, name="refused-0", is_connected=False, state="refused", trouble="another cluster's secret"),
        replace(INSTANCE, name="<b>stalled</b>", load=LoadReport(role=Role.MIX, is_stalled=True), role=Role.MIX),
    ]
    log = service.history.log
    for number in range(40):
        log.num_ended[Outcome.FINISHED] += 1
        log.remember(record(number))
    log.num_ended[Outcome.FAILED] += 1
    log.errors["internal_error"] += 1
    log.remember(record(99, Outcome.FAILED, "internal_error"))
    service.history.samples.take()
    return service
