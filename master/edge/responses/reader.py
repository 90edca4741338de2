"""/v1/responses"""

import time
from functools import partial

import msgspec

from master.edge.conversation.chat_request import ChatRequests
from master.edge.fields.tools import ToolUse
from master.edge.http.answer import Answer
from master.edge.http.request_body import decode_body
from master.edge.openai.logprobs import ChatLogprobs
from master.edge.responses.answer import ResponsesStream, ResponsesWhole
from master.edge.responses.body import ResponsesBody
from master.edge.responses.store import ResponseStore
from master.parsing.formats import ParserChoice
from master.request import RequestOptions
from master.service import Service

PATH = "/v1/responses"


class ResponsesReader:
    """Makes an Answer out of a body."""

    def __init__(self, service: Service, parsers: ParserChoice, store: ResponseStore) -> None:
        self._service = service
        self._store = store
        self._requests = ChatRequests(service, parsers)
        self._decoder = msgspec.json.Decoder(ResponsesBody)

    async def __call__(self, body_bytes: bytes) -> Answer:
        """Raises ServingError for whatever is wrong."""
        body = await self._service.text_pool.run(len(body_bytes), decode_body, body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        body.check_supported()
        body = self._store.continued(body)
        tools, options = await self._service.text_pool.run(len(body_bytes), _forms, body)
        chat = await self._requests.make(body, options, tools, num_body_bytes=len(body_bytes), names=body.field_names)
        form = ResponsesStream if body.stream else ResponsesWhole
        keep = partial(self._store.keep, body, len(body_bytes)) if self._store.stores(body) else None
        return form(body, chat, int(time.time()), ChatLogprobs(self._service.tokenizer, tokens_as_ids=False), keep)


def _forms(body: ResponsesBody) -> tuple[ToolUse, RequestOptions]:
    """Takes time in proportion to the body."""
    return body.tool_use(), body.request_options()
