"""The grammar that makes a model call: only output that the format's own parser reads as calls.

In llguidance's dialect of Lark. The schema of a tool's arguments is a JSON grammar of its own within it, and
not part of a schema of the whole call, since a schema's references (#/$defs/…) count from its root.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from master.parsing.call_format import CallFormat, CallLayout
from master.parsing.reasoning import ReasoningTags
from master.parsing.tool_choice import ToolChoice, ToolChoiceMode
from master.parsing.tool_definitions import ToolDefinition
from protos.sampling_messages import Grammar, GrammarKind

# As models write JSON in training. Whitespace left free lets an unlikely model write it for ever.
JSON_STYLE: Mapping[str, object] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_TEXT = r"/(?s:.*)/"


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
    special_token_ids: Mapping[str, int] | None = None,
) -> Grammar | None:
    """None if the model is free to call or not.

    A named function is called once; `is_parallel` (parallel_tool_calls) allows more than one call otherwise.
    `special_token_ids` has the tokenizer's special tokens: a tag among them is written as that token,
    for its text can't come from other tokens.
    """
    if choice.mode not in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        return None
    writer = _Writer(special_token_ids or {})
    layout = call_format.layout
    calls = " | ".join(f"call_{index}" for index in range(len(choice.tools)))
    more = ""
    if is_parallel and choice.mode is ToolChoiceMode.REQUIRED:
        more = f"({writer.pieces(layout.between)} call)*"
    start = (writer.thought(reasoning), writer.pieces(layout.begin), "call", more, writer.pieces(layout.end))
    rules = [
        f"start: {' '.join(part for part in start if part)}",
        f"call: {calls}",
        *(writer.call(index, layout, tool) for index, tool in enumerate(choice.tools)),
        *writer.thought_rules(reasoning),
    ]
    return Grammar(GrammarKind.LARK, "\n".join(rules) + "\n")


class _Writer:
    def __init__(self, special_token_ids: Mapping[str, int]) -> None:
        self._special_token_ids = special_token_ids

    def pieces(self, pieces: Iterable[str]) -> str:
        return " ".join(self._piece(piece) for piece in pieces)

    def call(self, index: int, layout: CallLayout, tool: ToolDefinition) -> str:
        name = json.dumps(tool.name) if layout.is_name_quoted else tool.name
        parts = (
            self.pieces((*layout.before_name, name, *layout.before_arguments)),
            f"arguments_{index}",
            self.pieces(layout.after_arguments),
        )
        schema = json.dumps({**tool.parameters, "x-guidance": JSON_STYLE})
        return f"call_{index}: {' '.join(part for part in parts if part)}\narguments_{index}: %json {schema}"

    def thought(self, reasoning: ReasoningBefore | None) -> str:
        if reasoning is None:
            return ""
        opening = "" if reasoning.is_open else f"{self._piece(reasoning.tags.open)} "
        thought = f"{opening}thought newlines?"
        return thought if reasoning.is_open else f"({thought})?"

    def thought_rules(self, reasoning: ReasoningBefore | None) -> tuple[str, ...]:
        if reasoning is None:
            return ()
        close = reasoning.tags.close
        newlines = r"newlines: /\n{1,2}/"
        if close in self._special_token_ids:
            return (f"thought: any_text {self._piece(close)}", f"any_text: {ANY_TEXT}", newlines)
        return (f"thought[suffix={json.dumps(close)}]: {ANY_TEXT}", newlines)

    def _piece(self, piece: str) -> str:
        token_id = self._special_token_ids.get(piece)
        return json.dumps(piece) if token_id is None else f"<[{token_id}]>"
