"""From a conversation to a request, and to the readers of what it yields: what all chat APIs have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from master.edge.conversation.choice_parser import ChoiceParser
from master.edge.conversation.conversation import Conversation
from master.edge.conversation.prompt_tokens import encode_chat
from master.edge.conversation.reasoning_tokens import ReasoningTokens
from master.edge.fields.tools import ToolUse
from master.errors import ServingError, invalid
from master.parsing.call_grammar import ReasoningBefore, call_grammar
from master.parsing.formats import ParserChoice
from master.parsing.tool_choice import ToolChoiceMode
from master.request import GenerationRequest, RequestOptions
from master.service import Service
from protos.sampling_messages import Grammar

# The end of a prompt that tells whether its template opened the reasoning, in tokens.
NUM_LAST_IDS = 64


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`readers` has one for each choice."""

    request: GenerationRequest
    readers: tuple[ChoiceParser, ...]


class ChatRequests:
    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._parsers = parsers
        tokenizer = service.tokenizer
        self._special_token_ids = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}

    async def make(
        self,
        conversation: Conversation,
        options: RequestOptions,
        tools: ToolUse,
        *,
        num_body_bytes: int,
        names: Mapping[str, str],
    ) -> ChatRequest:
        """`names` are the fields that this API calls otherwise than RequestOptions, by the latter's name.

        Raises ServingError for whatever is wrong.
        """
        has_grammar = options.grammar is not None
        must_call = tools.choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
        if must_call and has_grammar:
            raise invalid("tool_choice", "tool_choice demands a call, and the format of the answer is set as well")
        prompt_ids = await encode_chat(self._service, conversation, tools.template_tools, num_body_bytes)
        # an output that must match the client's grammar is all content
        parsers = ParserChoice() if has_grammar else self._parsers
        prompt_end = self._service.tokenizer.decode(prompt_ids[-NUM_LAST_IDS:], skip_special_tokens=False)
        if must_call:
            grammar = self._call_grammar(parsers, tools, prompt_end)
            options = replace(options, grammar=grammar, grammar_field="tools")
        if not self._special_token_ids.keys().isdisjoint(parsers.tags(has_tools=tools.may_call)):
            options = replace(options, sampling={**options.sampling, "skip_special_tokens": False})
        request = await _build(self._service, prompt_ids, options, names)
        readers = tuple(self._reader(parsers, tools, prompt_end) for _ in range(request.n))
        return ChatRequest(request, readers)

    def _reader(self, parsers: ParserChoice, tools: ToolUse, prompt_end: str) -> ChoiceParser:
        reasoning = None
        if parsers.reasoning is not None:
            reasoning = ReasoningTokens(self._service.tokenizer, parsers.reasoning.close)
        parser = parsers.new_parser(prompt_end, tools=tools.choice.tools if tools.may_call else None)
        return ChoiceParser(parser, reasoning, None if tools.is_parallel else 1)

    def _call_grammar(self, parsers: ParserChoice, tools: ToolUse, prompt_end: str) -> Grammar | None:
        if parsers.calls is None:
            raise invalid(
                "tool_choice", "tool_choice demands a call, but how this model writes calls is not known here"
            )
        reasoning = None
        if parsers.reasoning is not None:
            reasoning = ReasoningBefore(parsers.reasoning, parsers.reasoning.are_open_after(prompt_end))
        return call_grammar(
            parsers.calls,
            tools.choice,
            is_parallel=tools.is_parallel,
            reasoning=reasoning,
            marker_ids=self._special_token_ids,
        )


async def _build(
    service: Service, prompt_ids: Sequence[int], options: RequestOptions, names: Mapping[str, str]
) -> GenerationRequest:
    """Errors name the field as the client wrote it."""
    try:
        return await service.build_request(prompt_ids, options)
    except ServingError as error:
        name = names.get(error.field or "")
        if name is None:
            raise
        message = error.message.replace(error.field or "", name, 1)
        raise ServingError(
            error.kind, message, field=name, code=error.code, retry_after_s=error.retry_after_s
        ) from error
