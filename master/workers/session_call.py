"""The one gRPC call of a session with a worker: messages in and out, each within a time limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from master.workers.access import WorkerAccess
from protos import session_pb2 as wire
from protos.session_codec import decode_to_master, encode_to_worker
from protos.session_messages import ToMaster, ToWorker
from protos.session_pb2_grpc import WorkerStub

MESSAGE_LIMIT_BYTES = 64 << 20

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class WorkerLost(Exception):
    """The session ended; the message says how."""


class WorkerSilent(WorkerLost):
    """The worker said nothing for too long."""


# What reading and writing raise. InvalidStateError comes from writing into a call that is over.
CALL_ENDS = (WorkerLost, grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError, ValueError)


class SessionCall:
    """Made by `session_call`. Its methods raise one of CALL_ENDS when the call is over or a message makes no sense."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]") -> None:
        self._call = call

    async def read(self, timeout_s: float) -> ToMaster:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._call.read()
        except TimeoutError as error:
            raise WorkerSilent(f"silent for {timeout_s:g} s") from error
        if not isinstance(message, wire.ToMaster):
            raise WorkerLost(f"closed the session: {await self._call.details() or 'no reason given'}")
        return decode_to_master(message)

    async def write(self, message: ToWorker, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._call.write(encode_to_worker(message))


@asynccontextmanager
async def session_call(address: str, access: WorkerAccess) -> AsyncIterator[SessionCall]:
    """Connects with the first message that is written."""
    async with access.channel(address, _OPTIONS) as channel:
        call = WorkerStub(channel).Session(metadata=access.metadata)
        try:
            yield SessionCall(call)
        finally:
            call.cancel()


def refusal_of(error: Exception) -> str | None:
    """What a person has to put right; None for what time may heal."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"refused our token: {error.details()}; see --cluster_token"
    if "handshake" in (error.details() or "").lower():
        return f"and this master can't agree on TLS: {error.details()}; see --worker_tls_ca_file"
    return None


def describe(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
