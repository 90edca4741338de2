"""Makes the grammar of a whole output: reasoning, then calls, or what a client's own grammar allows, or any text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from master.parsing.call_format import CallFormat
from master.parsing.grammar_writer import GrammarWriter
from master.parsing.reasoning import ReasoningTags
from master.parsing.tool_choice import ToolChoice, ToolChoiceMode
from protos.sampling_messages import Grammar, GrammarKind

OPTIONAL_NEWLINES = r"/\n{0,2}/"


@dataclass(frozen=True, slots=True)
class ReasoningBefore:
    """Reasoning that may precede the answer; if it `is_open`, it has begun in the prompt and must be ended.

    It must be ended after `max_tokens`; None is no limit.
    """

    tags: ReasoningTags
    is_open: bool
    max_tokens: int | None = None


def call_grammar(
    call_format: CallFormat,
    choice: ToolChoice,
    *,
    is_parallel: bool,
    reasoning: ReasoningBefore | None = None,
    marker_ids: Mapping[str, int] | None = None,
) -> Grammar:
    """Makes a model call, as a choice demands that does so.

    A named function is called once; `is_parallel` (parallel_tool_calls) allows more than one call otherwise.
    `marker_ids` has the tokens that stand for a text as a whole.
    """
    writer = GrammarWriter(marker_ids or {})
    is_many = is_parallel and choice.mode is ToolChoiceMode.REQUIRED
    calls = call_format.write(writer, choice.tools, is_many)
    return writer.grammar(f"{_thought(writer, reasoning)} {calls}")


def reasoned_grammar(grammar: Grammar, reasoning: ReasoningBefore, marker_ids: Mapping[str, int]) -> Grammar:
    """Keeps the answer that follows the reasoning to the client's grammar."""
    writer = GrammarWriter(marker_ids)
    opening = writer.text(reasoning.tags.answer_opening) if reasoning.tags.answer_opening else ""
    return writer.grammar(f"{_thought(writer, reasoning)} {opening} {_nested(writer, grammar)}")


def bounded_reasoning(reasoning: ReasoningBefore, tags: Sequence[str], marker_ids: Mapping[str, int]) -> Grammar:
    """Makes reasoning end in time, and leaves the answer free. It may have `tags`, which are those of calls."""
    writer = GrammarWriter(marker_ids)
    markers = [writer.text(tag) for tag in tags if tag in marker_ids]
    answer = writer.one_of([r"/(?s:.+)/", *dict.fromkeys(markers)])
    return writer.grammar(f"{_thought(writer, reasoning)} {answer}*")


def _nested(writer: GrammarWriter, grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            parsed: object = json.loads(grammar.text)
            return writer.schema(parsed if isinstance(parsed, dict) else {})
        case GrammarKind.REGEX:
            escaped = grammar.text.replace("/", r"\/").replace("\n", r"\n")
            return writer.rule(f"/{escaped}/")
        case GrammarKind.CHOICE:
            return writer.one_of(json.dumps(choice, ensure_ascii=False) for choice in grammar.choices)
        case GrammarKind.LARK:
            return writer.rule(f"%lark {{\n{grammar.text}\n}}")


def _thought(writer: GrammarWriter, reasoning: ReasoningBefore | None) -> str:
    if reasoning is None:
        return ""
    tags, max_tokens = reasoning.tags, reasoning.max_tokens
    rest = writer.text(tags.before_answer) if tags.before_answer else writer.rule(OPTIONAL_NEWLINES)
    if reasoning.is_open:
        return f"{writer.text_until(tags.close, max_tokens)} {rest}"
    if max_tokens == 0:
        return ""
    return f"({writer.text(tags.open)} {writer.text_until(tags.close, max_tokens)} {rest})?"
