"""The blocking client of a master's gRPC API."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Self, TypeAlias, TypeVar, Unpack

import grpc

from client.channel import OPTIONS, call_metadata, load_credentials, target_of
from client.errors import error_of
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
ResponseCall: TypeAlias = "grpc.CallIterator[inference_pb2.GenerateResponse]"  # quoted: only the stubs know it


class Stream(Received):
    """The deltas of one request as they come. Iterating raises PdserveError.

    Leaving it early (`close`, or the end of its `with`) cancels the request.
    """

    def __init__(self, open_call: Callable[[float], ResponseCall], tries: Tries) -> None:
        super().__init__()
        self._open_call = open_call
        self._tries = tries
        self._pending: deque[Delta] = deque()
        self._open()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._pending:
            self._pending.extend(self._read(self._next_response()))
        return self._pending.popleft()

    def _next_response(self) -> inference_pb2.GenerateResponse:
        while True:
            try:
                return next(self._responses)
            except grpc.RpcError as failure:
                if self.id is not None:  # output was given; a second attempt would give it again
                    raise error_of(failure) from failure
                time.sleep(self._tries.wait_after(failure))
                self._open()

    def _open(self) -> None:
        self._call = self._open_call(self._tries.next_timeout_s())
        self._responses = iter(self._call)

    def close(self) -> None:
        """Harmless when the stream has ended."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """Talks to one master. All methods raise PdserveError, and may be called from several threads at once.

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
        """`address` is host:port or [ipv6]:port. Raises ValueError for another, OSError for an unreadable file."""
        target = target_of(address)
        self._metadata = call_metadata(api_key)
        credentials = load_credentials(ca_file, cert_file, key_file)
        self._channel = (
            grpc.insecure_channel(target, OPTIONS)
            if credentials is None
            else grpc.secure_channel(target, credentials, OPTIONS)
        )
        self._inference = InferenceStub(self._channel)
        self._cluster = ClusterStub(self._channel)
        self._timeout_s = timeout_s
        self._retries = retries

    def generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        """The completion of a text or of token ids."""
        with self.stream(prompt, timeout_s=timeout_s, **options) as deltas:
            return deltas.completion(list(deltas))

    def stream(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Stream:
        """The completion of a text or of token ids, as it is generated."""
        return self._stream(self._inference.Generate, generate_request(prompt, options), timeout_s)

    def chat(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Completion:
        """The model's answer to a chat."""
        with self.chat_stream(messages, timeout_s=timeout_s, **options) as deltas:
            return deltas.completion(list(deltas))

    def chat_stream(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Stream:
        """The model's answer to a chat, as it is generated."""
        return self._stream(self._inference.Chat, chat_request(messages, options), timeout_s)

    def tokenize(
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
        response: inference_pb2.TokenizeResponse = self._call(self._inference.Tokenize, request, timeout_s)
        return list(response.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, model: str | None = None, timeout_s: float | None = None) -> str:
        """The text of token ids, special tokens written out."""
        request = detokenize_request(token_ids, model)
        response: inference_pb2.DetokenizeResponse = self._call(self._inference.Detokenize, request, timeout_s)
        return response.text

    def models(self, *, timeout_s: float | None = None) -> list[ModelInfo]:
        """The served model under its name, then its aliases."""
        return decode_models(self._call(self._inference.ListModels, inference_pb2.ListModelsRequest(), timeout_s))

    def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """The instances as the master sees them."""
        return decode_cluster(self._call(self._cluster.ListInstances, cluster_pb2.ListInstancesRequest(), timeout_s))

    def cancel(self, request_id: str, *, timeout_s: float | None = None) -> None:
        """Ends a request of this master for everybody, by its id (`Stream.id`, or the id of an HTTP answer).

        Returns when no worker holds anything for it; who waits for its output gets Cancelled. Raises NotFound when
        none of exactly this id is running, DeadlineExceeded when workers did not confirm in time.
        """
        self._call(self._inference.Cancel, inference_pb2.CancelRequest(id=request_id), timeout_s)

    def trace(self, request_id: str, *, timeout_s: float | None = None) -> list[RequestStory]:
        """What the master remembers of the requests of this id or name, the latest first. Raises NotFound for none."""
        return decode_stories(self._call(self._cluster.Trace, cluster_pb2.TraceRequest(id=request_id), timeout_s))

    def drain(self, instance: str, *, timeout_s: float | None = None) -> None:
        """Tells an instance to finish what it has and to take nothing new. Raises NotFound for an unknown one."""
        self._call(self._cluster.Drain, cluster_pb2.DrainRequest(name=instance), timeout_s)

    def _stream(
        self,
        method: "grpc.UnaryStreamMultiCallable[Q, inference_pb2.GenerateResponse]",
        request: Q,
        timeout_s: float | None,
    ) -> Stream:
        return Stream(
            lambda remaining_s: method(request, timeout=remaining_s, metadata=self._metadata), self._tries(timeout_s)
        )

    def _call(self, method: "grpc.UnaryUnaryMultiCallable[Q, R]", request: Q, timeout_s: float | None) -> R:
        tries = self._tries(timeout_s)
        while True:
            try:
                return method(request, timeout=tries.next_timeout_s(), metadata=self._metadata)
            except grpc.RpcError as failure:
                time.sleep(tries.wait_after(failure))

    def _tries(self, timeout_s: float | None) -> Tries:
        return Tries(self._retries, self._timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Cancels what is still running."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
