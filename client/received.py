"""What a response stream has brought, read the same way for blocking and asyncio clients."""

from collections.abc import Iterable
from dataclasses import fields

from client.errors import InternalError
from client.results import Choice, Completion, Delta, Timeline, ToolCall, ToolCallDelta, Usage
from protos import inference_pb2 as wire
from protos.sampling_codec import decode_finish_reason, decode_logprobs
from protos.sampling_messages import TokenLogprobs


class Received:
    """What is known of the whole request.

    `id`, `model` and `created` are set from its first response on, as are `prompt_logprobs` where they were asked for;
    `usage` and `timeline` at its end.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.model: str | None = None
        self.created: int | None = None  # unix seconds
        self.usage: Usage | None = None
        self.timeline: Timeline | None = None
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def _read(self, response: wire.GenerateResponse) -> tuple[Delta, ...]:
        self.id, self.model, self.created = response.id, response.model, response.created
        if response.HasField("usage"):
            self.usage = _decode_usage(response.usage)
        if response.HasField("timeline"):
            self.timeline = decode_timeline(response.timeline)
        self.prompt_logprobs += decode_logprobs(response.prompt_logprobs)
        return tuple(_decode_delta(choice) for choice in response.choices)

    def completion(self, deltas: Iterable[Delta]) -> Completion:
        """All of a request's deltas put together. Raises InternalError when there was none."""
        by_index: dict[int, list[Delta]] = {}
        for delta in deltas:
            by_index.setdefault(delta.index, []).append(delta)
        if self.id is None or self.model is None or self.created is None or not by_index:
            raise InternalError("the response stream ended without any output")
        return Completion(
            id=self.id,
            model=self.model,
            created=self.created,
            choices=tuple(_join(by_index[index]) for index in sorted(by_index)),
            usage=self.usage,
            timeline=self.timeline,
            prompt_logprobs=self.prompt_logprobs,
        )


def _join(deltas: list[Delta]) -> Choice:
    return Choice(
        index=deltas[0].index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(item for delta in deltas for item in delta.logprobs),
        finish_reason=deltas[-1].finish_reason,
        matched_stop=deltas[-1].matched_stop,
        reasoning_text="".join(delta.reasoning_text for delta in deltas),
        tool_calls=_join_calls(part for delta in deltas for part in delta.tool_calls),
    )


def _join_calls(parts: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    by_index: dict[int, list[ToolCallDelta]] = {}
    for part in parts:
        by_index.setdefault(part.index, []).append(part)
    return tuple(
        ToolCall(
            id="".join(part.id or "" for part in by_index[index]),
            name="".join(part.name or "" for part in by_index[index]),
            arguments="".join(part.arguments for part in by_index[index]),
        )
        for index in sorted(by_index)
    )


def _decode_delta(choice: wire.ChoiceDelta) -> Delta:
    return Delta(
        index=choice.index,
        text=choice.text,
        token_ids=tuple(choice.token_ids),
        logprobs=decode_logprobs(choice.logprobs),
        finish_reason=decode_finish_reason(choice.finish_reason) if choice.HasField("finish_reason") else None,
        matched_stop=choice.matched_stop if choice.HasField("matched_stop") else None,
        reasoning_text=choice.reasoning_text,
        tool_calls=tuple(_decode_call(call) for call in choice.tool_calls),
    )


def _decode_call(call: wire.ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(call.index, call.arguments, call.id or None, call.name or None)


def _decode_usage(usage: wire.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def decode_timeline(message: wire.Timeline) -> Timeline:
    """Both have the same names."""
    return Timeline(**{field.name: getattr(message, field.name) for field in fields(Timeline)})
