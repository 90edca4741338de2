"""Turns away gRPC calls that present no accepted key, before anything of them is read."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio

from serving.keys import Keys
from serving.source_log import SourceLog

BEARER = "Bearer "
METADATA_KEY = "authorization"
# A load balancer asks for health without knowing keys; reflection tells nothing that is not in the .proto files.
OPEN_SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # quoted: only the stubs know that it is generic
Context = grpc.aio.ServicerContext[Any, Any]


class GrpcGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # likewise
    """`key_name` is what messages call a key, such as "API key"; `log` is told of everybody who is turned away."""

    def __init__(
        self,
        keys: Keys,
        key_name: str,
        open_services: Collection[str] = OPEN_SERVICES,
        log: SourceLog | None = None,
    ) -> None:
        self._keys = keys
        self._log = log
        self._key_name = key_name
        self._open_prefixes = tuple(f"/{service}/" for service in open_services)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        if handler_call_details.method.startswith(self._open_prefixes):
            return await continuation(handler_call_details)
        problem = self._problem(handler_call_details)
        if problem is None:
            return await continuation(handler_call_details)

        async def refuse(requests: object, context: Context) -> None:
            if self._log is not None:
                self._log.warning(context.peer().rpartition(":")[0], f"was turned away: {problem}")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)

        # The form that reads no message by itself; on the wire all forms are the same.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _problem(self, call: grpc.HandlerCallDetails) -> str | None:
        presented = [value for name, value in call.invocation_metadata or () if name == METADATA_KEY]
        if not presented:
            return f"no {self._key_name} was given: metadata {METADATA_KEY} must be {BEARER}and the {self._key_name}"
        for value in presented:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            if text.startswith(BEARER) and self._keys.accepts(text[len(BEARER) :].strip()):
                return None
        return f"the {self._key_name} is not valid"
