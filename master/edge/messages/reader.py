"""/v1/messages"""

import msgspec

from master.edge.conversation.chat_request import ChatRequests
from master.edge.fields.tools import ToolUse
from master.edge.http.answer import Answer
from master.edge.http.request_body import decode_body
from master.edge.messages.answer import MessageStream, MessageWhole
from master.edge.messages.body import MessagesBody
from master.parsing.formats import ParserChoice
from master.request import RequestOptions
from master.service import Service

PATH = "/v1/messages"


class MessagesReader:
    """Makes an Answer out of a body."""

    def __init__(self, service: Service, parsers: ParserChoice) -> None:
        self._service = service
        self._requests = ChatRequests(service, parsers)
        self._decoder = msgspec.json.Decoder(MessagesBody)

    async def __call__(self, body_bytes: bytes) -> Answer:
        """Raises ServingError for whatever is wrong."""
        body, tools, options = await self._service.text_pool.run(len(body_bytes), self._read, body_bytes)
        chat = await self._requests.make(body, options, tools, num_body_bytes=len(body_bytes), names=body.field_names)
        return MessageStream(chat) if body.stream else MessageWhole(chat)

    def _read(self, body_bytes: bytes) -> tuple[MessagesBody, ToolUse, RequestOptions]:
        """Takes time in proportion to the body."""
        body = decode_body(body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        return body, body.tool_use(), body.request_options()
