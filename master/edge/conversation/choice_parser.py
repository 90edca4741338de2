"""Splits one choice's output into content, reasoning and calls."""

import msgspec

from master.edge.conversation.reasoning_tokens import ReasoningTokens
from master.output import SequenceDelta
from master.parsing.events import Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from master.parsing.output_parser import OutputParser
from protos.sampling_messages import FinishReason


class ReadDelta(msgspec.Struct, frozen=True):
    events: list[Event]
    finish_reason: FinishReason | None


class ChoiceParser:
    """`max_calls` are told of, and any more dropped; None is no limit."""

    def __init__(self, parser: OutputParser, reasoning: ReasoningTokens | None, max_calls: int | None) -> None:
        self._parser = parser
        self._reasoning = reasoning
        self._max_calls = max_calls
        self._has_reasoned = False

    @property
    def num_reasoning_tokens(self) -> int:
        """It is known once all has been read."""
        return self._reasoning.count if self._reasoning is not None and self._has_reasoned else 0

    def read(self, delta: SequenceDelta) -> ReadDelta:
        events = self._parser.feed(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            events = events + self._parser.finish()
        if self._reasoning is not None:
            self._count(self._reasoning, delta, events)
        if self._max_calls is not None:
            events = [event for event in events if not self._is_beyond(event, self._max_calls)]
        return ReadDelta(events, self._finish_reason(delta))

    def _count(self, reasoning: ReasoningTokens, delta: SequenceDelta, events: list[Event]) -> None:
        reasoning.add(delta.token_ids)
        is_unfinished = delta.finish_reason is not None and self._parser.is_reasoning
        if is_unfinished or any(isinstance(event, ReasoningDelta) for event in events):
            self._has_reasoned = True

    def _is_beyond(self, event: Event, max_calls: int) -> bool:
        return isinstance(event, ToolCallStart | ToolCallArguments) and event.index >= max_calls

    def _finish_reason(self, delta: SequenceDelta) -> FinishReason | None:
        """A stop string of the client's may have cut a call short."""
        has_stopped_itself = delta.finish_reason is FinishReason.STOP and not isinstance(delta.matched_stop, str)
        has_called = self._parser.has_tool_calls and self._max_calls != 0
        return FinishReason.TOOL_CALLS if has_stopped_itself and has_called else delta.finish_reason
