"""Decides what an answer must look like, by its tools, its response format and its budget for reasoning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from master.edge.fields.tools import ToolUse
from master.errors import ErrorKind, ServingError, invalid
from master.parsing.answer_grammar import ReasoningBefore, bounded_reasoning, call_grammar, reasoned_grammar
from master.parsing.formats import ParserChoice
from master.parsing.tool_definitions import ToolDefinition
from master.parsing.typed_arguments import properties_of
from master.request import RequestOptions
from master.service import Service
from protos.sampling_messages import Grammar, GrammarKind
from serving.json_schema import dumped_schema

TOOLS_FIELD = "tools"
NO_BUDGET = -1


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """`parsers` read the answer of a request with these options."""

    parsers: ParserChoice
    options: RequestOptions


class AnswerFormats:
    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._parsers = parsers
        self._marker_ids: Mapping[str, int] = service.tokenizer.marker_ids

    def parsers_for(self, tools: ToolUse, options: RequestOptions) -> ParserChoice:
        """Tools that must be called win over a response format. Raises ServingError where nobody knows how to call."""
        if tools.choice.demands_call:
            parsers = self._parsers.for_forced_calls()
            if parsers.calls is None:
                raise invalid("tool_choice", "tool_choice demands a call, but --tool_call_parser is none")
            return parsers
        return self._parsers if options.grammar is None else self._parsers.for_text()

    async def make(
        self,
        parsers: ParserChoice,
        tools: ToolUse,
        options: RequestOptions,
        prompt_end: str,
        *,
        num_left: int,
        size: int,
    ) -> AnswerFormat:
        """`num_left` are the tokens that the context leaves; making it takes time in proportion to `size`.

        Raises ServingError for a schema that can't be used.
        """
        reasoning = self._reasoning(parsers, prompt_end)
        if reasoning is not None:
            has_form = tools.choice.demands_call or options.grammar is not None
            reasoning = replace(reasoning, max_tokens=_budget(options, num_left if has_form else None))
        if tools.choice.demands_call:
            options = await self._with_calls(parsers, tools, options, reasoning, size)
        elif options.grammar is not None and reasoning is not None:
            await self._service.check_grammar(options.grammar_field, options.grammar)
            grammar = await self._service.text_pool.run(
                size, reasoned_grammar, options.grammar, reasoning, self._marker_ids
            )
            options = replace(options, grammar=grammar)
        elif options.grammar is None and reasoning is not None and reasoning.max_tokens is not None:
            tags = parsers.tags(has_tools=tools.may_call)
            grammar = bounded_reasoning(reasoning, tags, self._marker_ids)
            options = replace(options, grammar=grammar, grammar_field="thinking_token_budget")
        if not self._service.tokenizer.special_texts.isdisjoint(parsers.tags(has_tools=tools.may_call)):
            options = replace(options, sampling={**options.sampling, "skip_special_tokens": False})
        return AnswerFormat(parsers, options)

    async def _with_calls(
        self,
        parsers: ParserChoice,
        tools: ToolUse,
        options: RequestOptions,
        reasoning: ReasoningBefore | None,
        size: int,
    ) -> RequestOptions:
        assert parsers.calls is not None, "parsers_for has seen to it"
        grammar = await self._service.text_pool.run(
            size,
            call_grammar,
            parsers.calls,
            tools.choice,
            is_parallel=tools.is_parallel,
            reasoning=reasoning,
            marker_ids=self._marker_ids,
        )
        try:
            await self._service.check_grammar(TOOLS_FIELD, grammar)
        except ServingError as error:
            if error.kind is not ErrorKind.INVALID_REQUEST:
                raise
            for tool in tools.choice.tools:
                await self._check_tool(tool, tools)
            problem = "tools cannot be demanded together: their schemas are too much to compile"
            raise invalid(TOOLS_FIELD, problem) from error
        return replace(options, grammar=grammar, grammar_field=TOOLS_FIELD)

    async def _check_tool(self, tool: ToolDefinition, tools: ToolUse) -> None:
        """Raises ServingError naming the tool, and the property where one alone is wrong."""
        try:
            await self._check_schema(tool.parameters)
        except ServingError as error:
            if error.kind is not ErrorKind.INVALID_REQUEST:
                raise
            where, problem = await self._wrong_property(tool), error.message.removeprefix("schema cannot be used: ")
            field = tools.rename(where)
            raise invalid(field, f"{field} of the tool {tool.name!r} cannot be used: {problem}") from error

    async def _wrong_property(self, tool: ToolDefinition) -> str:
        for name, schema, _ in properties_of(tool.parameters):
            try:
                await self._check_schema(schema)
            except ServingError as error:
                if error.kind is ErrorKind.INVALID_REQUEST:
                    return f"{tool.path}.properties.{name[:100]}"
                raise
        return tool.path

    async def _check_schema(self, schema: Mapping[str, object]) -> None:
        await self._service.check_grammar("schema", Grammar(GrammarKind.JSON_SCHEMA, dumped_schema(schema)))

    def _reasoning(self, parsers: ParserChoice, prompt_end: str) -> ReasoningBefore | None:
        tags = parsers.reasoning
        if tags is None or tags.are_closed_after(prompt_end):
            return None
        return ReasoningBefore(tags, tags.are_open_after(prompt_end))


def _budget(options: RequestOptions, num_left: int | None) -> int | None:
    """Tokens that reasoning may have. Where an answer's form is demanded, `num_left` has what the context leaves."""
    asked = options.sampling.get("thinking_token_budget")
    if asked is not None:
        return None if asked == NO_BUDGET else max(asked, 0)
    if num_left is None:
        return None
    max_tokens = options.sampling.get("max_tokens")
    return max(num_left if max_tokens is None else max_tokens, 0) // 2
