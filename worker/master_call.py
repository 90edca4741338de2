"""The one gRPC call of a session with a master, on the worker's side: messages in and out."""

import asyncio
import logging
from typing import NoReturn, TypeVar

import grpc
import grpc.aio

from protos import session_pb2 as wire
from protos.session_codec import decode_to_worker, encode_to_master
from protos.session_messages import ToMaster, ToWorker
from serving.grpc_guard import BEARER, METADATA_KEY
from serving.keys import Keys
from serving.own_time import is_done_within

logger = logging.getLogger(__name__)

LAST_WRITE_S = 1.0

T = TypeVar("T")

Context = grpc.aio.ServicerContext[wire.ToWorker, wire.ToMaster]


class MasterCall:
    """`timeout_s`: a master that says nothing for so long is gone."""

    def __init__(self, context: Context, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._writing: asyncio.Future[None] | None = None

    def presented_key(self, keys: Keys | None) -> str | None:
        """The one of these that the master presented."""
        for name, value in self._context.invocation_metadata() or ():
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            key = text.removeprefix(BEARER).strip()
            if keys is not None and name == METADATA_KEY and keys.accepts(key):
                return key
        return None

    async def read(self) -> ToWorker | None:
        """None at the end of the stream. Raises TimeoutError for a silent master, ValueError for nonsense."""
        reading: asyncio.Task[object] = asyncio.create_task(self._read())
        try:
            if not await is_done_within(reading, self._timeout_s):
                raise TimeoutError(f"silent for {self._timeout_s:g} s")
        finally:
            reading.add_done_callback(_look_at)
            reading.cancel()
        message = reading.result()
        return decode_to_worker(message) if isinstance(message, wire.ToWorker) else None

    async def _read(self) -> object:
        return await self._context.read()

    async def write(self, message: ToMaster) -> None:
        """One at a time. Waits for as long as the master does not read; may be cancelled."""
        self._writing = asyncio.ensure_future(self._context.write(encode_to_master(message)))
        self._writing.add_done_callback(_look_at)
        await asyncio.shield(self._writing)

    async def fail(self, problem: BaseException) -> NoReturn:
        """Ends the call with what was wrong with the master, and raises.

        gRPC can't end a call beside its first write, so what was begun is waited for. A later one may have to wait for
        ever for a master that reads nothing, and does no harm.
        """
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing], timeout=LAST_WRITE_S)
        if isinstance(problem, ValueError):
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        if isinstance(problem, TimeoutError):
            logger.warning("a master was %s", problem)
            await self._context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(problem))
        raise problem


def _look_at(operation: "asyncio.Future[T]") -> None:
    """What nobody waits for any more may fail unseen."""
    if not operation.cancelled():
        operation.exception()
