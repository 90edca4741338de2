"""Makes a request of a conversation, and the readers of what it yields, for all chat APIs alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from master.edge.conversation.answer_format import AnswerFormats
from master.edge.conversation.choice_parser import ChoiceParser
from master.edge.conversation.conversation import Conversation
from master.edge.conversation.prompt_tokens import encode_chat
from master.edge.conversation.reasoning_tokens import ReasoningTokens
from master.edge.fields.tools import ToolUse
from master.errors import ServingError
from master.parsing.formats import ParserChoice
from master.request import GenerationRequest, RequestOptions
from master.service import Service
from master.text.reasoning_span import ReasoningSpan

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
        self._formats = AnswerFormats(service, parsers)

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
        parsers = self._formats.parsers_for(tools, options)
        max_context = self._service.resolve_model(options.model).max_context
        prompt_ids = await encode_chat(
            self._service, conversation, tools.template_tools, num_body_bytes, parsers.calls, max_context
        )
        prompt_end = self._service.tokenizer.decode(prompt_ids[-NUM_LAST_IDS:], skip_special_tokens=False)
        num_left = max_context - len(prompt_ids)
        answer = await self._formats.make(parsers, tools, options, prompt_end, num_left=num_left, size=num_body_bytes)
        request = await _build(self._service, prompt_ids, answer.options, names)
        if (tags := parsers.reasoning) is not None:
            span = ReasoningSpan(tags.open, tags.close, tags.are_open_after(prompt_end))
            request = replace(request, reasoning=span)
        readers = tuple(self._reader(parsers, tools, prompt_end) for _ in range(request.n))
        return ChatRequest(request, readers)

    async def prompt_ids(self, conversation: Conversation, tools: ToolUse, num_body_bytes: int) -> list[int]:
        """The tokens of a conversation, as its answer would be computed from them. Raises ServingError."""
        calls = self._formats.parsers_for(tools, RequestOptions()).calls
        return await encode_chat(self._service, conversation, tools.template_tools, num_body_bytes, calls)

    def _reader(self, parsers: ParserChoice, tools: ToolUse, prompt_end: str) -> ChoiceParser:
        reasoning = None
        if parsers.reasoning is not None:
            reasoning = ReasoningTokens(self._service.tokenizer, parsers.reasoning.close)
        parser = parsers.new_parser(prompt_end, tools=tools.choice.tools if tools.may_call else None)
        max_calls = 0 if not tools.may_call else None if tools.is_parallel else 1
        return ChoiceParser(parser, reasoning, max_calls)


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
