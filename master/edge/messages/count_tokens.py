"""/v1/messages/count_tokens"""

import msgspec

from master.edge.conversation.chat_request import ChatRequests
from master.edge.fields.tools import ToolUse
from master.edge.http.json_object import encode
from master.edge.http.request_body import decode_body
from master.edge.messages.body import CountTokensBody
from master.parsing.formats import ParserChoice
from master.service import Service

PATH = "/v1/messages/count_tokens"


class CountTokens:
    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._requests = ChatRequests(service, parsers)
        self._decoder = msgspec.json.Decoder(CountTokensBody)

    async def __call__(self, body_bytes: bytes) -> bytes:
        """`{"input_tokens"}`: exactly those that /v1/messages would compute. Raises ServingError."""
        body, tools = await self._service.text_pool.run(len(body_bytes), self._read, body_bytes)
        ids = await self._requests.prompt_ids(body, tools, len(body_bytes))
        return encode({"input_tokens": len(ids)})

    def _read(self, body_bytes: bytes) -> tuple[CountTokensBody, ToolUse]:
        body = decode_body(body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        return body, body.tool_use()
