"""The Inference service: every method reads a request, asks the domain, and writes what comes.

Streams are written with `context.write`, not by an async generator: a handler that is a coroutine is cancelled at its
await the moment the client leaves, while a suspended generator is only closed when it is collected.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from master.edge.conversation.chat_request import ChatRequests
from master.edge.conversation.choice_parser import ChoiceParser
from master.edge.conversation.prompt_tokens import decode_ids
from master.edge.grpc.caller import caller
from master.edge.grpc.chat import GrpcConversation
from master.edge.grpc.codec import decode_options, encode_output
from master.edge.grpc.prompt import generate_prompt, tokenize_prompt
from master.edge.grpc.status import Context, answering
from master.edge.slow_reader import SlowReader
from master.errors import ErrorKind, ServingError
from master.parsing.formats import ParserChoice
from master.request import GenerationRequest
from master.service import Service
from protos import inference_pb2 as wire
from protos.inference_pb2_grpc import InferenceServicer

logger = logging.getLogger(__name__)

# What options are called where the prompt is a chat.
CHAT_NAMES = {"prompt": "messages"}


class Inference(InferenceServicer):
    def __init__(self, service: Service, parsers: ParserChoice, slow_reader_timeout_s: float) -> None:
        self._service = service
        self._slow_reader_timeout_s = slow_reader_timeout_s
        self._chats = ChatRequests(service, parsers)

    async def Generate(self, request: wire.GenerateRequest, context: Context) -> None:
        arrived_s = time.monotonic()
        async with answering(context):
            self._service.resolve_model(request.options.model or None)
            prompt_ids = await generate_prompt(self._service, request)
            options = decode_options(request.options, _time_limit_s(context))
            built = await self._service.build_request(prompt_ids, options)
            await self._stream(replace(built, arrived_s=arrived_s), (), context)

    async def Chat(self, request: wire.ChatRequest, context: Context) -> None:
        arrived_s = time.monotonic()
        async with answering(context):
            self._service.resolve_model(request.options.model or None)
            conversation = GrpcConversation(request)
            tools = await self._service.text_pool.run(conversation.num_bytes, conversation.tool_use)
            options = decode_options(request.options, _time_limit_s(context))
            chat = await self._chats.make(
                conversation, options, tools, num_body_bytes=conversation.num_bytes, names=CHAT_NAMES
            )
            await self._stream(replace(chat.request, arrived_s=arrived_s), chat.readers, context)

    async def _stream(self, request: GenerationRequest, readers: Sequence[ChoiceParser], context: Context) -> None:
        created = int(time.time())
        request = replace(request, client=caller(context))
        async with aclosing(self._service.generate(request)) as outputs:
            async for output in outputs:
                message = encode_output(output, request.id, request.model, created, readers)
                try:
                    async with asyncio.timeout(self._patience_s(request)):
                        await context.write(message)
                except TimeoutError as error:
                    raise SlowReader(request.id) from error

    def _patience_s(self, request: GenerationRequest) -> float:
        """Says how long a write may wait: a request's time limit holds for its client too."""
        return min(self._slow_reader_timeout_s, request.arrived_s + request.time_limit_s - time.monotonic())

    async def Cancel(self, request: wire.CancelRequest, context: Context) -> wire.CancelResponse:
        async with answering(context):
            await self._service.cancel(request.id, caller(context))
            logger.info("%s: cancelled by %s", ascii(request.id), context.peer())
            return wire.CancelResponse()

    async def Tokenize(self, request: wire.TokenizeRequest, context: Context) -> wire.TokenizeResponse:
        async with answering(context):
            card = self._service.resolve_model(request.model or request.chat.options.model or None)
            return wire.TokenizeResponse(
                token_ids=await tokenize_prompt(self._service, self._chats, request), max_context=card.max_context
            )

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Context) -> wire.DetokenizeResponse:
        async with answering(context):
            self._service.resolve_model(request.model or None)
            ids = list(request.token_ids)
            return wire.DetokenizeResponse(text=await decode_ids(self._service, "token_ids", ids, False))

    async def ListModels(self, request: wire.ListModelsRequest, context: Context) -> wire.ListModelsResponse:
        async with answering(context):
            return wire.ListModelsResponse(
                models=[
                    wire.Model(id=card.id, max_context=card.max_context, created=card.created, owner=card.owner)
                    for card in self._service.models()
                ]
            )


def _time_limit_s(context: Context) -> float | None:
    """What is left of the client's deadline. Raises ServingError when that is nothing."""
    # grpc-stubs leaves out that a call without a deadline has None here
    remaining_s: float | None = context.time_remaining()
    if remaining_s is not None and remaining_s <= 0:
        raise ServingError(ErrorKind.DEADLINE_EXCEEDED, "the deadline had passed before the request was read")
    return remaining_s
