"""The one gRPC call of a session with a worker: messages in and out.

Greeting and parting have time limits of their own. In between `watch` sees to both directions, so that no message needs
a timer or a task.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import grpc.aio

from master.workers.access import WorkerAccess
from protos import session_pb2 as wire
from protos.session_codec import decode_to_master, encode_to_worker
from protos.session_messages import ToMaster, ToWorker
from protos.session_pb2_grpc import WorkerStub
from serving.own_time import TICK_S, is_done_within

MESSAGE_LIMIT_BYTES = 64 << 20
PARTING_S = 1.0

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
    """The worker said nothing for too long, or listened to nothing."""


class SessionRefused(Exception):
    """One of both does not want to work with the other; the message says why. Only a person can mend it."""


# What reading and writing raise. InvalidStateError comes from writing into a call that is over.
CALL_ENDS = (WorkerLost, SessionRefused, grpc.aio.AioRpcError, asyncio.InvalidStateError, ValueError)

Call = grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]


class SessionCall:
    """Made by `session_call`. Its methods raise one of CALL_ENDS when the call is over or a message makes no sense."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._reading: asyncio.Task[object] | None = None
        self._idle_ticks = 0  # since the latest message came
        self._writing_ticks: int | None = None  # that one message has taken to be written; None while none is

    async def read(self, limit_s: float) -> ToMaster | None:
        """None if nothing came so far; what comes later is not lost. One reader at a time."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._call.read())
        if not await is_done_within(self._reading, limit_s):
            return None
        reading, self._reading = self._reading, None
        return await self._decoded(_result(reading))

    async def receive(self) -> ToMaster:
        """The next message, for as long as `watch` lets it take."""
        with _cancelled_call():
            message = await self._call.read()
        self._idle_ticks = 0
        return await self._decoded(message)

    async def send(self, message: ToWorker) -> None:
        """Returns once it is on its way, for as long as `watch` lets it take."""
        self._writing_ticks = 0
        with _cancelled_call():
            await self._call.write(encode_to_worker(message))
        self._writing_ticks = None

    async def watch(self, quiet_s: float, silence_s: float, on_quiet: Callable[[], None]) -> None:
        """Never returns. Calls `on_quiet` when nothing came for `quiet_s`; raises WorkerSilent after `silence_s`.

        A pause of ours counts as one tick, however long it was: see `serving.own_time`.
        """
        tick_s = min(TICK_S, quiet_s / 4)
        while True:
            await asyncio.sleep(tick_s)
            self._idle_ticks += 1
            if self._writing_ticks is not None:
                self._writing_ticks += 1
            if (self._writing_ticks or 0) * tick_s > silence_s:
                raise WorkerSilent(f"reads nothing for {silence_s:g} s")
            if self._idle_ticks * tick_s > silence_s:
                raise WorkerSilent(f"silent for {silence_s:g} s")
            if self._idle_ticks * tick_s > quiet_s:
                on_quiet()

    async def _decoded(self, message: object) -> ToMaster:
        if not isinstance(message, wire.ToMaster):
            raise WorkerLost(f"closed the session: {await self._call.details() or 'no reason given'}")
        return decode_to_master(message)

    async def write(self, message: ToWorker, limit_s: float) -> None:
        writing: asyncio.Task[object] = asyncio.create_task(self._call.write(encode_to_worker(message)))
        try:
            if not await is_done_within(writing, limit_s):
                raise WorkerSilent(f"reads nothing for {limit_s:g} s")
            _result(writing)
        finally:
            writing.cancel()

    async def leave(self) -> None:
        """Nothing more is written: the worker ends the call once it has heard what was said before."""
        await self._call.done_writing()

    async def wait_for_end(self) -> None:
        """Follows `leave`, for a little while: a call that is cancelled at once may lose its last words."""
        with contextlib.suppress(*CALL_ENDS):
            while await self.read(PARTING_S) is not None:
                pass

    def close(self) -> None:
        if self._reading is not None:
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._reading.cancel()
        self._call.cancel()


@contextlib.contextmanager
def _cancelled_call() -> Iterator[None]:
    """A call that is cancelled under its readers must not look as if they had been."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise WorkerLost("the call was cancelled") from error


def _result(task: "asyncio.Task[object]") -> object:
    """`_cancelled_call` for one that was read in a task."""
    if task.cancelled():
        raise WorkerLost("the call was cancelled")
    return task.result()


@contextlib.asynccontextmanager
async def session_call(address: str, access: WorkerAccess) -> AsyncIterator[SessionCall]:
    """Connects with the first message that is written."""
    async with access.channel(address, _OPTIONS) as channel:
        call = SessionCall(WorkerStub(channel).Session(metadata=access.metadata))
        try:
            yield call
        finally:
            call.close()


def refusal_of(error: Exception) -> str | None:
    """What a person has to put right; None for what time may heal."""
    if isinstance(error, SessionRefused):
        return str(error)
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"it refused our token: {error.details()}; see --cluster_token"
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return f"it refuses this master: {error.details()}"
    if "handshake" in (error.details() or "").lower():
        return f"no agreement on TLS: {error.details()}; see --worker_tls_ca_file"
    return None


def describe(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
