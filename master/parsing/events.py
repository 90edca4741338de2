"""What a parser makes of the model's text: OpenAI's streaming form of content, reasoning and tool calls."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
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


class OutputParser(Protocol):
    """Reads one sequence's text as it comes.

    How the text is cut into pieces changes only how content, reasoning and arguments are cut, never what they
    add up to. Text that turns out to be no call is content, as it was written. A call whose start was given out
    stays a call, even if the output ends, or stops being JSON, within its arguments.
    """

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call was given out; an output that then stops by itself has finish reason TOOL_CALLS."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What was held back, once no more text comes. Nothing may be fed after it."""
