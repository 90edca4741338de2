"""Reasoning that precedes the answer: <think>…</think>, or other tags.

Models write "<think>\\n…\\n</think>\\n\\n": newlines at both ends of the reasoning and before the answer are layout and
dropped. (vLLM keeps them; SGLang drops all whitespace there.) Only the output's beginning can be reasoning: a tag
later on is content, and so is all of an output that has no opening tag, unless the prompt already opened it.
"""

from dataclasses import dataclass
from enum import Enum, auto

from master.parsing.events import ContentDelta, Event, ReasoningDelta
from master.parsing.tag_gate import TagGate

NEWLINES = "\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """`name` is what the flag calls them; a chat template that has `sign` tells that the model writes them.

    `before_answer` is what the model writes between reasoning and answer, and is newlines if empty. An answer that is
    no call begins with `answer_opening`.
    """

    name: str
    sign: str
    open: str
    close: str
    before_answer: str = ""
    answer_opening: str = ""

    def are_open_after(self, prompt: str) -> bool:
        """Whether the prompt's text ends within reasoning, as with templates that write the opening tag."""
        return prompt.rstrip().endswith(self.open)

    def are_closed_after(self, prompt: str) -> bool:
        """Whether the prompt's text ends with reasoning, as with templates that leave it out where it is not wanted."""
        return prompt.rstrip().endswith(self.close)


THINK = ReasoningTags("think", "</think>", "<think>", "</think>")
MISTRAL_THINK = ReasoningTags("mistral_think", "[/THINK]", "[THINK]", "[/THINK]")


class _Place(Enum):
    START = auto()
    BEFORE_REASONING = auto()
    IN_REASONING = auto()
    BEFORE_ANSWER = auto()
    IN_ANSWER = auto()


class ReasoningParser:
    has_tool_calls = False

    def __init__(self, tags: ReasoningTags, *, is_open: bool) -> None:
        """`is_open`: the output begins within reasoning. A model that opens it once more is not taken at its word."""
        self._tags = tags
        self._is_open = is_open
        self._place = _Place.START
        self._held = ""  # newlines, and what may be the opening tag
        self._gate = TagGate(tags.close, layout=NEWLINES)

    @property
    def is_reasoning(self) -> bool:
        """Whether the next token is part of the reasoning, or ends it."""
        if self._place is _Place.START:
            return self._is_open
        return self._place in (_Place.BEFORE_REASONING, _Place.IN_REASONING)

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            match self._place:
                case _Place.START:
                    text = self._read_start(text)
                case _Place.BEFORE_REASONING:
                    text = self._skip_newlines(text, _Place.IN_REASONING)
                case _Place.IN_REASONING:
                    text = self._read_reasoning(text, events)
                case _Place.BEFORE_ANSWER:
                    text = self._skip_newlines(text, _Place.IN_ANSWER)
                case _Place.IN_ANSWER:
                    events.append(ContentDelta(text))
                    text = ""
        return events

    def finish(self) -> list[Event]:
        held = (self._held if self._place is _Place.START else "") + self._gate.flush()
        if not held:
            return []
        if not self.is_reasoning:
            return [ContentDelta(held)]
        # newlines here may be those at the beginning as well as at the end
        reasoning = held.lstrip(NEWLINES) if self._place is _Place.START else held
        return [ReasoningDelta(reasoning)] if reasoning.strip(NEWLINES) else []

    def _read_start(self, text: str) -> str:
        self._held += text
        begun = self._held.lstrip(NEWLINES)
        if begun.startswith(self._tags.open):
            self._place = _Place.BEFORE_REASONING
            return begun[len(self._tags.open) :]
        if self._tags.open.startswith(begun):
            return ""
        self._place = _Place.BEFORE_REASONING if self._is_open else _Place.IN_ANSWER
        return self._held

    def _read_reasoning(self, text: str, events: list[Event]) -> str:
        passed = self._gate.feed(text)
        if passed.text:
            events.append(ReasoningDelta(passed.text))
        if passed.tag is not None:
            self._place = _Place.BEFORE_ANSWER
        return passed.rest

    def _skip_newlines(self, text: str, then: _Place) -> str:
        rest = text.lstrip(NEWLINES)
        if rest:
            self._place = then
        return rest
