"""What a parser makes of the model's text: OpenAI's streaming form of content, reasoning and tool calls."""

from dataclasses import dataclass

import msgspec


class ContentDelta(msgspec.Struct, frozen=True):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The call numbered `index`, counted from 0 in one output. Its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """Further JSON text of the arguments; all of a call's texts in a row are the arguments."""

    index: int
    text: str


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments
