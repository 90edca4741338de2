"""The asyncio client of a master's gRPC API: `client.sync_client`, awaited."""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from client.channel import OPTIONS, call_metadata, load_credentials, target_of
from client.errors import Cancelled, error_of
from client.listings import decode_cluster, decode_models
from client.options import (
    ChatOptions,
    GenerateOptions,
    Message,
    TemplateOptions,
    chat_request,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from client.received import Received
from client.results import ClusterInfo, Completion, Delta, ModelInfo, RequestStory
from client.retries import DEFAULT_RETRIES, RetryPolicy, Tries
from client.stories import decode_stories
from protos import cluster_pb2, inference_pb2
from protos.cluster_pb2_grpc import ClusterStub
from protos.inference_pb2_grpc import InferenceStub

Q = TypeVar("Q")
R = TypeVar("R")
ResponseCall = grpc.aio.UnaryStreamCall[Any, inference_pb2.GenerateResponse]


class AsyncStream(Received):
    """The deltas of one request as they come. Iterating raises PdserveError.

    Leaving it early (`close`, or the end of its `async with`) cancels the request.
    """

    def __init__(self, open_call: Callable[[float], ResponseCall], tries: Tries) -> None:
        super().__init__()
        self._open_call = open_call
        self._tries = tries
        self._pending: deque[Delta] = deque()
        self._open()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._pending:
            self._pending.extend(self._read(await self._next_response()))
        return self._pending.popleft()

    async def _next_response(self) -> inference_pb2.GenerateResponse:
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as failure:
                if self.id is not None:  # output was given; a second attempt would give it again
                    raise error_of(failure) from failure
                await asyncio.sleep(self._tries.wait_after(failure))
                self._open()
            except asyncio.CancelledError as error:
                if _is_cancelling():
                    raise
                # grpc.aio raises it when only the call was cancelled, too
                raise Cancelled("the stream was closed") from error
            else:
                if isinstance(response, inference_pb2.GenerateResponse):
                    return response
                raise StopAsyncIteration

    def _open(self) -> None:
        self._call = self._open_call(self._tries.next_timeout_s())
        # gRPC keeps a call alive that nobody reads any more, up to its deadline
        weakref.finalize(self, self._call.cancel).atexit = False

    def close(self) -> None:
        """Harmless when the stream has ended."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """Talks to one master. All methods raise PdserveError, and belong to the loop it was made in.

    `timeout_s` bounds every call, retries included, unless the call has its own. `api_key` is by default that of the
    environment variable PDSERVE_API_KEY. `ca_file` (PEM) turns on TLS; `cert_file` and `key_file` are the client's own,
    for a master that asks for them.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 600.0,
        retries: RetryPolicy = DEFAULT_RETRIES,
        api_key: str | None = None,
        ca_file: str | PathLike[str] | None = None,
        cert_file: str | PathLike[str] | None = None,
        key_file: str | PathLike[str] | None = None,
    ) -> None:
        """`address` is host:port or [ipv6]:port. Raises ValueError for another, OSError for an unreadable file.

        It must be made where a loop runs; raises RuntimeError elsewhere.
        """
        asyncio.get_running_loop()  # a channel made outside belongs to a loop that may never run
        target = target_of(address)
        self._metadata = call_metadata(api_key)
        credentials = load_credentials(ca_file, cert_file, key_file)
        self._channel = (
            grpc.aio.insecure_channel(target, OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, OPTIONS)
        )
        self._inference = InferenceStub(self._channel)
        self._cluster = ClusterStub(self._channel)
        self._timeout_s = timeout_s
        self._retries = retries

    async def generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        """The completion of a text or of token ids."""
        async with self.stream(prompt, timeout_s=timeout_s, **options) as deltas:
            return deltas.completion([delta async for delta in deltas])

    def stream(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncStream:
        """The completion of a text or of token ids, as it is generated."""
        return self._stream(self._inference.Generate, generate_request(prompt, options), timeout_s)

    async def chat(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Completion:
        """The model's answer to a chat."""
        async with self.chat_stream(messages, timeout_s=timeout_s, **options) as deltas:
            return deltas.completion([delta async for delta in deltas])

    def chat_stream(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncStream:
        """The model's answer to a chat, as it is generated."""
        return self._stream(self._inference.Chat, chat_request(messages, options), timeout_s)

    async def tokenize(
        self,
        text: str | Sequence[Message],
        *,
        model: str | None = None,
        add_special_tokens: bool | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TemplateOptions],
    ) -> list[int]:
        """The token ids that a text, or a chat by the model's template, is for the model."""
        request = tokenize_request(text, model, add_special_tokens, options)
        response: inference_pb2.TokenizeResponse = await self._call(self._inference.Tokenize, request, timeout_s)
        return list(response.token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, model: str | None = None, timeout_s: float | None = None
    ) -> str:
        """The text of token ids, special tokens written out."""
        request = detokenize_request(token_ids, model)
        response: inference_pb2.DetokenizeResponse = await self._call(self._inference.Detokenize, request, timeout_s)
        return response.text

    async def models(self, *, timeout_s: float | None = None) -> list[ModelInfo]:
        """The served model under its name, then its aliases."""
        return decode_models(await self._call(self._inference.ListModels, inference_pb2.ListModelsRequest(), timeout_s))

    async def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """The instances as the master sees them."""
        return decode_cluster(
            await self._call(self._cluster.ListInstances, cluster_pb2.ListInstancesRequest(), timeout_s)
        )

    async def cancel(self, request_id: str, *, timeout_s: float | None = None) -> None:
        """Ends a request of this master for everybody, by its id (`Stream.id`, or the id of an HTTP answer).

        Returns when no worker holds anything for it; who waits for its output gets Cancelled. Raises NotFound when
        none of exactly this id is running, DeadlineExceeded when workers did not confirm in time.
        """
        await self._call(self._inference.Cancel, inference_pb2.CancelRequest(id=request_id), timeout_s)

    async def trace(self, request_id: str, *, timeout_s: float | None = None) -> list[RequestStory]:
        """What the master remembers of the requests of this id or name, the latest first. Raises NotFound for none."""
        return decode_stories(await self._call(self._cluster.Trace, cluster_pb2.TraceRequest(id=request_id), timeout_s))

    async def drain(self, instance: str, *, timeout_s: float | None = None) -> None:
        """Tells an instance to finish what it has and to take nothing new. Raises NotFound for an unknown one."""
        await self._call(self._cluster.Drain, cluster_pb2.DrainRequest(name=instance), timeout_s)

    def _stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[Q, inference_pb2.GenerateResponse],
        request: Q,
        timeout_s: float | None,
    ) -> AsyncStream:
        return AsyncStream(
            lambda remaining_s: method(request, timeout=remaining_s, metadata=self._metadata), self._tries(timeout_s)
        )

    async def _call(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, timeout_s: float | None) -> R:
        tries = self._tries(timeout_s)
        while True:
            try:
                return await method(request, timeout=tries.next_timeout_s(), metadata=self._metadata)
            except grpc.aio.AioRpcError as failure:
                await asyncio.sleep(tries.wait_after(failure))

    def _tries(self, timeout_s: float | None) -> Tries:
        return Tries(self._retries, self._timeout_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        """Cancels what is still running."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
