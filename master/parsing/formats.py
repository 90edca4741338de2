"""Which parsers a model's output goes through: named by a flag, or told from its chat template."""

from dataclasses import dataclass

from master.parsing.call_format import CallFormat
from master.parsing.call_ids import CallSeries
from master.parsing.composed import ComposedParser
from master.parsing.hermes import HERMES
from master.parsing.llama3_json import LLAMA3_JSON
from master.parsing.mistral import MISTRAL, MISTRAL_ARRAY
from master.parsing.plain import PlainParser
from master.parsing.reasoning import MISTRAL_THINK, THINK, ReasoningParser, ReasoningTags

NONE = "none"
AUTO = "auto"
CALL_FORMATS = {call_format.name: call_format for call_format in (HERMES, LLAMA3_JSON, MISTRAL)}
REASONING_TAGS = {"think": THINK, "mistral_think": MISTRAL_THINK}
# templates with Hermes' tag around something that is not JSON: Qwen3-Coder, GLM
OTHER_TOOL_CALL_BODIES = ("<function=", "<arg_key>")


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """None: the model writes no calls, or no reasoning, that could be read."""

    calls: CallFormat | None = None
    reasoning: ReasoningTags | None = None

    def new_parser(self, prompt: str, *, has_tools: bool) -> ComposedParser:
        """For one sequence. `prompt` is the rendered chat, whose end tells whether the template opened the reasoning;
        without tools, or with tool_choice none, nothing is taken for a call."""
        reasoning = None
        if self.reasoning is not None:
            reasoning = ReasoningParser(self.reasoning, is_open=self.reasoning.are_open_after(prompt))
        if self.calls is None or not has_tools:
            return ComposedParser(reasoning, PlainParser())
        return ComposedParser(reasoning, self.calls.new_parser(CallSeries(self.calls.new_id)))

    def tags(self, *, has_tools: bool) -> tuple[str, ...]:
        """What the parser looks for. Where one is a special token, special tokens must not be skipped."""
        reasoning = () if self.reasoning is None else (self.reasoning.open, self.reasoning.close)
        return reasoning + (self.calls.tags if self.calls is not None and has_tools else ())


def choose_parsers(tool_call_parser: str, reasoning_parser: str, chat_template: str | None) -> ParserChoice:
    """Raises ValueError for a name that is not known."""
    return ParserChoice(
        _call_format(tool_call_parser, chat_template or ""), _reasoning_tags(reasoning_parser, chat_template or "")
    )


def _call_format(name: str, template: str) -> CallFormat | None:
    if name == NONE:
        return None
    if name == AUTO:
        return _detected_format(template)
    if name not in CALL_FORMATS:
        raise ValueError(f"tool_call_parser is {name!r}; it must be one of {', '.join((NONE, AUTO, *CALL_FORMATS))}")
    if name == MISTRAL.name:
        return _mistral_of(template)
    return CALL_FORMATS[name]


def _reasoning_tags(name: str, template: str) -> ReasoningTags | None:
    if name == NONE:
        return None
    if name == AUTO:
        return next((tags for tags in REASONING_TAGS.values() if tags.close in template), None)
    if name not in REASONING_TAGS:
        raise ValueError(f"reasoning_parser is {name!r}; it must be one of {', '.join((NONE, AUTO, *REASONING_TAGS))}")
    return REASONING_TAGS[name]


def _detected_format(template: str) -> CallFormat | None:
    if "<tool_call>" in template:
        return None if any(body in template for body in OTHER_TOOL_CALL_BODIES) else HERMES
    if "[TOOL_CALLS]" in template:
        return _mistral_of(template)
    if "<|python_tag|>" in template or '{"name": function name, "parameters":' in template:
        return LLAMA3_JSON
    return None


def _mistral_of(template: str) -> CallFormat:
    """Both are read alike; they differ in what a model is made to write."""
    return MISTRAL_ARRAY if "[TOOL_CALLS]" in template and "[ARGS]" not in template else MISTRAL
