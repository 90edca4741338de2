"""The prompt of a gRPC request as token ids: given, tokenised, or rendered through the chat template."""

from master.edge.conversation.chat_request import ChatRequests
from master.edge.conversation.prompt_tokens import check_ids, encode_text
from master.edge.grpc.chat import GrpcConversation
from master.errors import invalid
from master.service import Service
from protos import inference_pb2 as wire


async def generate_prompt(service: Service, request: wire.GenerateRequest) -> list[int]:
    """Raises ServingError when no prompt is set."""
    match request.WhichOneof("prompt"):
        case "text":
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            max_tokens = service.resolve_model(None).max_context
            return await encode_text(service, "prompt", request.text, special, max_tokens)
        case "token_ids":
            ids = list(request.token_ids.ids)
            await check_ids(service, "prompt", ids)
            return ids
        case _:
            raise invalid("prompt", "prompt is not set; give text or token_ids")


async def tokenize_prompt(service: Service, chats: ChatRequests, request: wire.TokenizeRequest) -> list[int]:
    """Raises ServingError naming the field, with the template's own text where the template refuses."""
    match request.WhichOneof("input"):
        case "text":
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            return await encode_text(service, "text", request.text, special)
        case "chat":
            conversation = GrpcConversation(request.chat)
            tools = await service.text_pool.run(conversation.num_bytes, conversation.tool_use)
            return await chats.prompt_ids(conversation, tools, conversation.num_bytes)
        case _:
            raise invalid("input", "input is not set; give text or chat")
