"""/v1/chat/completions"""

import time

import msgspec

from master.edge.chat.answer import ChatResponse, ChatStream
from master.edge.chat.body import ChatBody
from master.edge.conversation.chat_request import ChatRequests
from master.edge.http.answer import Answer
from master.edge.http.request_body import decode_body
from master.parsing.formats import ParserChoice
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
        body = decode_body(body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        body.check_stream_fields()
        body.check_supported()
        tools = body.tool_use()
        has_new_name = body.max_completion_tokens is not None
        options = body.to_options(
            n=body.n,
            max_tokens=body.max_completion_tokens if has_new_name else body.max_tokens,
            logprobs=body.num_logprobs(),
            prompt_logprobs=body.prompt_logprobs,
        )
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        if has_new_name:
            names["max_tokens"] = "max_completion_tokens"
        chat = await self._requests.make(body, options, tools, num_body_bytes=len(body_bytes), names=names)
        form = ChatStream if body.stream else ChatResponse
        return form(body, chat, int(time.time()), self._service.tokenizer)
