"""The grammar that makes a model call: only output that the format's own parser reads as calls."""

from collections.abc import Mapping
from dataclasses import dataclass

from master.parsing.call_format import CallFormat
from master.parsing.grammar_writer import GrammarWriter
from master.parsing.reasoning import ReasoningTags
from master.parsing.tool_choice import ToolChoice, ToolChoiceMode
from protos.sampling_messages import Grammar


@dataclass(frozen=True, slots=True)
class ReasoningBefore:
    """Reasoning that may precede the calls; if it `is_open`, it has begun in the prompt and must be ended."""

    tags: ReasoningTags
    is_open: bool


def call_grammar(
    call_format: CallFormat,
    choice: ToolChoice,
    *,
    is_parallel: bool,
    reasoning: ReasoningBefore | None = None,
    marker_ids: Mapping[str, int] | None = None,
) -> Grammar | None:
    """None if the model is free to call or not.

    A named function is called once; `is_parallel` (parallel_tool_calls) allows more than one call otherwise.
    `marker_ids` has the tokens that stand for a text as a whole.
    """
    if choice.mode not in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        return None
    writer = GrammarWriter(marker_ids or {})
    is_many = is_parallel and choice.mode is ToolChoiceMode.REQUIRED
    calls = call_format.write(writer, choice.tools, is_many)
    return writer.grammar(f"{_thought(writer, reasoning)} {calls}")


def _thought(writer: GrammarWriter, reasoning: ReasoningBefore | None) -> str:
    if reasoning is None:
        return ""
    tags = reasoning.tags
    rest = writer.text(tags.before_answer) if tags.before_answer else writer.rule(r"/\n{0,2}/")
    thought = f"{writer.text_until(tags.close)} {rest}"
    return thought if reasoning.is_open else f"({writer.text(tags.open)} {thought})?"
