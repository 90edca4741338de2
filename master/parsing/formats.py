"""Which parsers a model's output goes through: named by a flag, or told from its chat template.

Another format is a file and a line in one of the two tables.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries
from master.parsing.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from master.parsing.glm45 import GLM45, GLM47
from master.parsing.harmony import HARMONY
from master.parsing.hermes import HERMES
from master.parsing.kimi_k2 import KIMI_K2
from master.parsing.llama3_json import LLAMA3_JSON
from master.parsing.mistral import MISTRAL, MISTRAL_ARRAY
from master.parsing.output_parser import OutputParser, ReasoningThenCalls
from master.parsing.plain import PlainParser
from master.parsing.pythonic import PYTHONIC
from master.parsing.qwen3_xml import QWEN3_XML
from master.parsing.reasoning import MISTRAL_THINK, THINK, ReasoningParser, ReasoningTags
from master.parsing.tool_definitions import ToolDefinition

NONE = "none"
AUTO = "auto"
# of formats with one name, the first is taken where no template tells
CALL_FORMATS = (
    HERMES,
    QWEN3_XML,
    *(GLM45, GLM47),
    *(MISTRAL, MISTRAL_ARRAY),
    *(DEEPSEEK_V31, DEEPSEEK_V3),
    KIMI_K2,
    HARMONY,
    PYTHONIC,
    LLAMA3_JSON,
)
REASONING_TAGS = (
    THINK,
    MISTRAL_THINK,
)


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """None: the model writes no calls, or no reasoning, that could be read.

    `forced_calls` is how calls are written where a client demands one.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningTags | None = None
    forced_calls: CallFormat | None = None

    def for_forced_calls(self) -> "ParserChoice":
        return replace(self, calls=self.calls or self.forced_calls)

    def for_text(self) -> "ParserChoice":
        """Nothing but reasoning is told from the answer."""
        is_needed = self.calls is not None and self.calls.new_reader is not None
        return self if is_needed else replace(self, calls=None)

    def new_parser(self, prompt: str, *, tools: Sequence[ToolDefinition] | None) -> OutputParser:
        """Makes one for each sequence.

        The end of `prompt`, which is the rendered chat, tells whether the template opened the reasoning. Where `tools`
        is None (there are none, or tool_choice is none) nothing is taken for a call.
        """
        if self.calls is not None and self.calls.new_reader is not None:
            return self.calls.new_reader(CallSeries(self.calls.new_id, tools or ()))
        reasoning = None
        if self.reasoning is not None:
            reasoning = ReasoningParser(self.reasoning, is_open=self.reasoning.are_open_after(prompt))
        if self.calls is None or tools is None:
            return ReasoningThenCalls(reasoning, PlainParser())
        return ReasoningThenCalls(reasoning, self.calls.new_parser(CallSeries(self.calls.new_id, tools)))

    def tags(self, *, has_tools: bool) -> tuple[str, ...]:
        """What the parser looks for. Where one is a special token, special tokens must not be skipped."""
        reasoning = () if self.reasoning is None else (self.reasoning.open, self.reasoning.close)
        are_read = self.calls is not None and (has_tools or self.calls.new_reader is not None)
        return reasoning + (self.calls.tags if self.calls is not None and are_read else ())


def call_format_names() -> list[str]:
    return _names(call_format.name for call_format in CALL_FORMATS)


def reasoning_names() -> list[str]:
    return _names(tags.name for tags in REASONING_TAGS)


def choose_parsers(tool_call_parser: str, reasoning_parser: str, chat_template: str | None) -> ParserChoice:
    """Raises ValueError for a name that is not known."""
    calls = _call_format(tool_call_parser, chat_template or "")
    reasoning = _reasoning_tags(reasoning_parser, chat_template or "")
    if calls is not None and calls.reasoning is not None:
        reasoning = calls.reasoning
    # what a model was not taught it can still be made to write
    return ParserChoice(calls, reasoning, HERMES if tool_call_parser == AUTO and calls is None else calls)


def _call_format(name: str, template: str) -> CallFormat | None:
    if name == NONE:
        return None
    told = [call_format for call_format in CALL_FORMATS if call_format.is_told_by(template)]
    if name == AUTO:
        return next(iter(told), None)
    named = [call_format for call_format in CALL_FORMATS if call_format.name == name]
    if not named:
        raise ValueError(f"tool_call_parser is {name!r}; it must be one of {', '.join(call_format_names())}")
    return next((call_format for call_format in named if call_format in told), named[0])


def _reasoning_tags(name: str, template: str) -> ReasoningTags | None:
    if name == NONE:
        return None
    if name == AUTO:
        return next((tags for tags in REASONING_TAGS if tags.sign in template), None)
    named = [tags for tags in REASONING_TAGS if tags.name == name]
    if not named:
        raise ValueError(f"reasoning_parser is {name!r}; it must be one of {', '.join(reasoning_names())}")
    return named[0]


def _names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((AUTO, NONE, *names)))
