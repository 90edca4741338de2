"""What a tool-call format is: how calls are read, how they are written, and which models write them.

A format is one file that makes one of these (a family with two ways of writing makes two of one name), and its line in
`master.parsing.formats`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.parsing.call_ids import CallSeries
from master.parsing.grammar_writer import GrammarWriter
from master.parsing.output_parser import OutputParser, TextParser
from master.parsing.reasoning import ReasoningTags
from master.parsing.tool_definitions import ToolDefinition

# The expression for one call of any of the tools, or if the last argument is true for one or more.
WriteCalls = Callable[[GrammarWriter, Sequence[ToolDefinition], bool], str]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`name` is what the flag calls it. `is_told_by` a chat template whose model writes calls so.

    `tags` may be special tokens, so detokenising must not skip those. Where reasoning and answer are marked in the
    same way as calls, `new_reader` makes what reads all of an output, and `reasoning` has the tags of that.
    `example` shows a model how to call that was not taught to.
    """

    name: str
    tags: tuple[str, ...]
    is_told_by: Callable[[str], bool]
    new_parser: Callable[[CallSeries], TextParser]
    new_id: Callable[[], str]
    write: WriteCalls
    new_reader: Callable[[CallSeries], OutputParser] | None = None
    reasoning: ReasoningTags | None = None
    example: str = ""
