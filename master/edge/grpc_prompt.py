"""The prompt of a gRPC request as token ids: given, tokenised, or rendered through the chat template."""

import asyncio

from master.edge.grpc_codec import decode_messages, decode_object, decode_objects
from master.edge.prompt_ids import MAX_CHARACTERS_IN_LOOP, encode_text
from master.errors import invalid
from master.service import Service
from protos import inference_pb2 as wire


async def generate_prompt(service: Service, request: wire.GenerateRequest) -> list[int]:
    """Raises ServingError when no prompt is set."""
    match request.WhichOneof("prompt"):
        case "text":
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            return await encode_text(service, "prompt", request.text, special)
        case "token_ids":
            return list(request.token_ids.ids)
        case _:
            raise invalid("prompt", "prompt is not set; give text or token_ids")


async def chat_prompt(service: Service, request: wire.ChatRequest) -> list[int]:
    """Raises ServingError naming the field, with the template's own text where the template refuses."""
    if request.ByteSize() > MAX_CHARACTERS_IN_LOOP:
        text = await asyncio.to_thread(_render, service, request)
    else:
        text = _render(service, request)
    return await encode_text(service, "messages", text, add_special_tokens=False)


async def tokenize_prompt(service: Service, request: wire.TokenizeRequest) -> list[int]:
    """Raises ServingError when neither text nor chat is set, and as the others."""
    match request.WhichOneof("input"):
        case "text":
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            return await encode_text(service, "text", request.text, special)
        case "chat":
            return await chat_prompt(service, request.chat)
        case _:
            raise invalid("input", "input is not set; give text or chat")


def _render(service: Service, request: wire.ChatRequest) -> str:
    messages = decode_messages(request.messages)
    tools = decode_objects("tools_json", request.tools_json) if request.tools_json else None
    kwargs_json = request.chat_template_kwargs_json
    kwargs = decode_object("chat_template_kwargs_json", kwargs_json) if kwargs_json else None
    is_continued = request.continue_final_message
    generates = request.add_generation_prompt if request.HasField("add_generation_prompt") else not is_continued
    try:
        return service.chat_template.render(messages, tools, generates, is_continued, kwargs)
    except ValueError as error:  # a TemplateError
        raise invalid("messages", str(error)) from error
