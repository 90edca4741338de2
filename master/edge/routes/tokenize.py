"""/tokenize and /detokenize, as vLLM has them."""

import msgspec

from master.edge.chat.body import ChatBody
from master.edge.conversation.chat_request import ChatRequests
from master.edge.conversation.prompt_tokens import decode_ids, encode_text
from master.edge.http.json_object import encode
from master.edge.http.request_body import decode_body
from master.errors import invalid
from master.parsing.formats import ParserChoice
from master.service import ModelCard, Service


class TokenizeBody(ChatBody, frozen=True, kw_only=True):
    """Either a text, or messages with all that belongs to a chat."""

    prompt: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    tokens: list[int]
    model: str | None = None


class Tokenize:
    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._requests = ChatRequests(service, parsers)
        self._decoder = msgspec.json.Decoder(TokenizeBody)

    async def __call__(self, body_bytes: bytes) -> bytes:
        """`{"tokens", "count", "max_model_len", "token_strs"}`, the last null unless asked for. Raises ServingError."""
        body = await self._service.text_pool.run(len(body_bytes), decode_body, body_bytes, self._decoder)
        model = self._service.resolve_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "prompt and messages are both set or both missing; one of them is needed")
        if body.prompt is not None:
            ids = await encode_text(self._service, "prompt", body.prompt, body.add_special_tokens is not False)
        else:
            tools = await self._service.text_pool.run(len(body_bytes), body.tool_use)
            ids = await self._requests.prompt_ids(body, tools, len(body_bytes))
        return await self._service.text_pool.run(len(ids), self._answer, ids, body, model)

    def _answer(self, ids: list[int], body: TokenizeBody, model: ModelCard) -> bytes:
        tokenizer = self._service.tokenizer
        texts = [tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
        return encode({"tokens": ids, "count": len(ids), "max_model_len": model.max_context, "token_strs": texts})


class Detokenize:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(DetokenizeBody)

    async def __call__(self, body_bytes: bytes) -> bytes:
        """`{"prompt": text}`, special tokens included. Raises ServingError."""
        body = await self._service.text_pool.run(len(body_bytes), decode_body, body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        return encode({"prompt": await decode_ids(self._service, "tokens", body.tokens, False)})
