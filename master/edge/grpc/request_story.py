"""What a master remembers of a request, as protobuf."""

from dataclasses import asdict

from master.edge.grpc.codec import encode_timeline
from master.history.record import RequestRecord
from protos import cluster_pb2 as wire

RUNNING = "running"


def encode_story(record: RequestRecord) -> wire.RequestStory:
    return wire.RequestStory(
        id=record.id,
        answer_id=record.answer_id,
        name=record.name,
        model=record.model,
        arrived_unix_s=record.arrived_unix_s,
        outcome=RUNNING if record.outcome is None else record.outcome.value,
        error=record.error,
        message=record.message,
        finish_reasons=record.finish_reasons,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        timeline=encode_timeline(record.timeline),
        spans=[wire.Span(**asdict(span)) for span in record.spans],
    )
