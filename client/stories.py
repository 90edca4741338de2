"""What a master remembers of a request, out of protobuf."""

from client.received import decode_timeline
from client.results import RequestStory, Span
from protos import cluster_pb2


def decode_stories(response: cluster_pb2.TraceResponse) -> list[RequestStory]:
    return [_decode(story) for story in response.requests]


def _decode(story: cluster_pb2.RequestStory) -> RequestStory:
    return RequestStory(
        id=story.id,
        answer_id=story.answer_id,
        name=story.name,
        model=story.model,
        arrived_unix_s=story.arrived_unix_s,
        outcome=story.outcome,
        error=story.error,
        message=story.message,
        finish_reasons=tuple(story.finish_reasons),
        prompt_tokens=story.prompt_tokens,
        completion_tokens=story.completion_tokens,
        cached_tokens=story.cached_tokens,
        timeline=decode_timeline(story.timeline),
        spans=tuple(
            Span(span.name, span.attempt, span.instance, span.start_s, span.duration_s, span.detail)
            for span in story.spans
        ),
    )
