"""/v1/chat/completions"""

import time
from collections.abc import Mapping

import msgspec

from master.edge.answer import Answer
from master.edge.body import decode_body
from master.edge.chat_answer import ChatResponse, ChatStream
from master.edge.chat_types import ChatBody
from master.edge.prompt_ids import encode_chat
from master.errors import ServingError
from master.request import GenerationRequest, RequestOptions
from master.service import Service

PATH = "/v1/chat/completions"


class ChatReader:
    """Makes an Answer out of a body."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(ChatBody)

    async def __call__(self, body_bytes: bytes) -> Answer:
        """Raises ServingError for whatever is wrong."""
        body = decode_body(body_bytes, self._decoder)
        self._service.resolve_model(body.model)
        body.check_stream_fields()
        body.check_tool_fields()
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
        prompt_ids = await encode_chat(self._service, body, len(body_bytes))
        request = _build(self._service, prompt_ids, options, names)
        form = ChatStream if body.stream else ChatResponse
        return form(body, request, int(time.time()), self._service.tokenizer)


def _build(
    service: Service, prompt_ids: list[int], options: RequestOptions, names: Mapping[str, str]
) -> GenerationRequest:
    """Errors name the field as the client wrote it."""
    try:
        return service.build_request(prompt_ids, options)
    except ServingError as error:
        name = names.get(error.field or "")
        if name is None:
            raise
        message = error.message.replace(error.field or "", name, 1)
        raise ServingError(
            error.kind, message, field=name, code=error.code, retry_after_s=error.retry_after_s
        ) from error
