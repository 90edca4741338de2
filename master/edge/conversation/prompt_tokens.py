"""A request's prompt as token ids."""

import asyncio

from master.edge.conversation.conversation import Conversation
from master.edge.fields.tools import Tools
from master.errors import invalid
from master.service import Service

# Longer ones go to a thread: they would hold up every stream of this process.
MAX_CHARACTERS_IN_LOOP = 10_000


async def encode_text(service: Service, field: str, text: str, add_special_tokens: bool) -> list[int]:
    """Raises ServingError naming the field."""
    if len(text) > MAX_CHARACTERS_IN_LOOP:
        return await asyncio.to_thread(_encode, service, field, text, add_special_tokens)
    return _encode(service, field, text, add_special_tokens)


async def encode_chat(
    service: Service, conversation: Conversation, tools: Tools | None, num_body_bytes: int
) -> list[int]:
    """By the model's chat template, which writes special tokens itself.

    Raises ServingError naming the message that is wrong, or with the template's own text.
    """
    if num_body_bytes > MAX_CHARACTERS_IN_LOOP:
        return await asyncio.to_thread(_encode_chat, service, conversation, tools)
    return _encode_chat(service, conversation, tools)


def _encode(service: Service, field: str, text: str, add_special_tokens: bool) -> list[int]:
    try:
        return service.tokenizer.encode(text, add_special_tokens)
    except ValueError as error:
        raise invalid(field, f"{field}: {error}") from error


def _encode_chat(service: Service, conversation: Conversation, tools: Tools | None) -> list[int]:
    messages, kwargs = conversation.template_messages(), conversation.template_kwargs()
    try:
        text = service.chat_template.render(
            messages,
            tools,
            conversation.adds_generation_prompt,
            conversation.continues_final_message,
            kwargs,
        )
    except ValueError as error:  # TemplateError
        raise invalid("messages", str(error)) from error
    return _encode(service, "messages", text, conversation.adds_special_tokens)
