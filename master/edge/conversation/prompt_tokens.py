"""Turns a request's prompt into token ids."""

from collections.abc import Sequence

from master.edge.conversation.conversation import Conversation
from master.edge.fields.tools import Tools
from master.errors import invalid
from master.parsing.call_format import CallFormat
from master.parsing.tool_prompt import with_tools
from master.service import Service
from master.text.user_markers import CUT
from master.validation import context_exceeded
from protos.option import shown

# Ids become Python's numbers in one go, during which nothing else runs: 46 ms for two million on the machine measured.
MAX_TEXT_BYTES = 2 << 20
BYTES_A_TOKEN = 8  # more than most texts have; contexts of millions of tokens need longer texts


async def encode_text(
    service: Service, field: str, text: str, add_special_tokens: bool, max_tokens: int | None = None
) -> list[int]:
    """A text that must have more than `max_tokens`, by its length, is not tokenised. Raises ServingError."""
    return await service.text_pool.run(len(text), _encode, service, field, [text], add_special_tokens, max_tokens)


async def encode_chat(
    service: Service,
    conversation: Conversation,
    tools: Tools | None,
    num_body_bytes: int,
    calls: CallFormat | None,
    max_tokens: int | None = None,
) -> list[int]:
    """Renders the conversation by the model's chat template, which writes special tokens itself, and tokenises it.

    `calls` is how the model calls, if it can. What must have more than `max_tokens`, by its length, is not tokenised.
    Raises ServingError naming the message that
    is wrong, or with the template's own text.
    """
    return await service.text_pool.run(num_body_bytes, _encode_chat, service, conversation, tools, calls, max_tokens)


async def check_ids(service: Service, field: str, token_ids: Sequence[int]) -> None:
    """Raises ServingError naming an id that the tokenizer has no text for."""
    await service.text_pool.run(len(token_ids), _check_ids, service, field, token_ids)


async def decode_ids(service: Service, field: str, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Raises ServingError as `check_ids` does."""
    return await service.text_pool.run(len(token_ids), _decode, service, field, token_ids, skip_special_tokens)


def _check_ids(service: Service, field: str, token_ids: Sequence[int]) -> None:
    vocabulary = service.tokenizer.vocabulary
    position = vocabulary.position_without_text(token_ids)
    if position is not None:
        known = f"ids are 0 … {len(vocabulary.token_bytes) - 1}"
        told = f"{field}[{position}] is token id {shown(token_ids[position])}, which has no text here; {known}"
        raise invalid(field, told)


def _decode(service: Service, field: str, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
    _check_ids(service, field, token_ids)
    return service.tokenizer.decode(token_ids, skip_special_tokens)


def _encode(
    service: Service, field: str, texts: Sequence[str], add_special_tokens: bool, max_tokens: int | None
) -> list[int]:
    """Tokenises texts apart that follow each other."""
    tokenizer = service.tokenizer
    _check_length(service, field, sum(len(text.encode("utf-8", "surrogatepass")) for text in texts), max_tokens)
    ids: list[int] = []
    try:
        for number, text in enumerate(texts):
            ids += tokenizer.encode(text, add_special_tokens and number == 0)
    except ValueError as error:
        raise invalid(field, f"{field}: {error}") from error
    return ids


def _encode_chat(
    service: Service,
    conversation: Conversation,
    tools: Tools | None,
    calls: CallFormat | None,
    max_tokens: int | None,
) -> list[int]:
    messages, kwargs = conversation.template_messages(), conversation.template_kwargs()
    template = service.chat_template
    if (markers := service.user_markers) is not None:
        messages = [markers.cut(message) for message in messages]
    if tools and calls is not None and not template.shows_tools:
        messages = with_tools(messages, tools, calls, takes_system=template.takes_system)
    try:
        text = template.render(
            messages,
            tools,
            conversation.adds_generation_prompt,
            conversation.continues_final_message,
            kwargs,
        )
    except ValueError as error:  # TemplateError
        raise invalid("messages", str(error)) from error
    return _encode(service, "messages", text.split(CUT), conversation.adds_special_tokens, max_tokens)


def _check_length(service: Service, field: str, num_bytes: int, max_tokens: int | None) -> None:
    if max_tokens is not None and num_bytes > max_tokens * service.tokenizer.vocabulary.num_longest_bytes:
        raise context_exceeded(field, max_tokens, f"{field} has {num_bytes} bytes, more than so many tokens can hold")
    max_bytes = max(MAX_TEXT_BYTES, BYTES_A_TOKEN * service.resolve_model(None).max_context)
    if num_bytes > max_bytes:
        raise invalid(field, f"{field} has {num_bytes} bytes; at most {max_bytes} are tokenised")
