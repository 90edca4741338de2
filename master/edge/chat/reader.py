"""/v1/chat/completions"""

import time
from dataclasses import replace

import msgspec

from master.edge.chat.answer import ChatResponse, ChatStream
from master.edge.chat.body import ChatBody
from master.edge.conversation.chat_request import ChatRequests
from master.edge.fields.tools import ToolUse
from master.edge.http.answer import Answer
from master.edge.http.request_body import decode_body
from master.parsing.formats import ParserChoice
from master.request import RequestOptions
from master.service import Service

PATH = "/v1/chat/completions"


class ChatReader:
    """Makes an Answer out of a body."""

    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._requests = ChatRequests(service, parsers)
        self._decoder = msgspec.json.Decoder(ChatBody)

    async def __call__(self, body_bytes: bytes) -> Answer:
        """Raises ServingError for whatever is wrong."""
        body, tools, options = await self._service.text_pool.run(len(body_bytes), self._read, body_bytes)
        (name,) = body.request_names(1)
        options = replace(options, name=name)
        chat = await self._requests.make(body, options, tools, num_body_bytes=len(body_bytes), names=body.field_names)
        form = ChatStream if body.stream else ChatResponse
        return form(body, chat, int(time.time()), self._service.tokenizer)

    def _read(self, body_bytes: bytes) -> tuple[ChatBody, ToolUse, RequestOptions]:
        """Takes time in proportion to the body."""
        body = decode_body(body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        body.check_supported()
        return body, body.tool_use(), body.request_options()
