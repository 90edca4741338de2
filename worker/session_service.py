"""The session with masters: one stream each, the legs behind it."""

import asyncio
import logging
from collections.abc import Callable

import grpc
import grpc.aio

from protos import session_pb2 as wire
from protos.session_codec import decode_to_worker, encode_to_master
from protos.session_messages import (
    Cancel,
    DecodeHere,
    Drain,
    Heartbeat,
    Hello,
    LoadReport,
    SnapshotRequest,
    Start,
    ToMaster,
    ToWorker,
    Welcome,
)
from protos.session_pb2_grpc import WorkerServicer
from worker.faults.messages import MessageFaults
from worker.legs.leg_life import Legs
from worker.master_link import MasterLink

logger = logging.getLogger(__name__)

LOAD_INTERVAL_S = 0.5  # of load reports, which are heartbeats too

Context = grpc.aio.ServicerContext[wire.ToWorker, wire.ToMaster]


class SessionService(WorkerServicer):
    """`welcome`, `load` and `drain` are asked of the process around it."""

    def __init__(
        self,
        legs: Legs,
        *,
        welcome: Callable[[], Welcome],
        load: Callable[[], LoadReport],
        drain: Callable[[], None],
        master_timeout_s: float,
        faults: MessageFaults | None = None,
    ) -> None:
        self._legs = legs
        self._welcome = welcome
        self._load = load
        self._drain = drain
        self._master_timeout_s = master_timeout_s
        self._faults = faults
        self.num_sessions = 0

    async def Session(self, request_iterator: object, context: Context) -> None:
        """Runs until the master leaves, falls silent or sends what makes no sense; its legs end with it."""
        try:
            hello = await self._read(context)
            if not isinstance(hello, Hello):
                raise ValueError(f"the first message must be hello, not {type(hello).__name__}")
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError as error:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        link = MasterLink(hello.master_id)
        self._legs.attach(link)
        self.num_sessions += 1
        logger.info("master %s connected", link.master_id)
        reader = asyncio.create_task(self._obey(context, link), name=f"session of {link.master_id}")
        writer = asyncio.create_task(self._report(context, link), name=f"reports to {link.master_id}")
        try:
            # A write may wait for ever on a master that does not read; the reader notices when it is gone.
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._legs.detach(link)
            self.num_sessions -= 1
            logger.info("master %s is gone", link.master_id)
            reader.cancel()
            writer.cancel()
            await asyncio.wait([reader, writer])
        await _tell_why(context, reader, writer)

    async def _report(self, context: Context, link: MasterLink) -> None:
        """Send welcome, what the legs deliver, and the load at least every LOAD_INTERVAL_S."""
        await self._write(context, self._welcome())
        loop = asyncio.get_running_loop()
        next_load_s = loop.time()
        while True:
            if loop.time() >= next_load_s:
                await self._write(context, self._load())
                next_load_s = loop.time() + LOAD_INTERVAL_S
            for message in await link.take(next_load_s - loop.time()):
                await self._write(context, message)

    async def _write(self, context: Context, message: ToMaster) -> None:
        if self._faults is None or await self._faults.lets_pass():
            await context.write(encode_to_master(message))

    async def _obey(self, context: Context, link: MasterLink) -> None:
        """Returns when the master left. Raises what `_read` does, ValueError also for a second hello."""
        while True:
            match message := await self._read(context):
                case None:
                    return
                case Start():
                    self._legs.begin(link, message)
                case Cancel():
                    self._legs.cancel(link, message.leg, message.sequence)
                case DecodeHere():
                    self._legs.decode_here(link, message.leg)
                case Drain():
                    self._drain()
                case SnapshotRequest():
                    self._legs.send_snapshot(link)
                case Heartbeat():
                    pass
                case Hello():
                    raise ValueError("hello came twice")

    async def _read(self, context: Context) -> ToWorker | None:
        """None at the end of the stream. Raises TimeoutError for a silent master, ValueError for nonsense."""
        try:
            async with asyncio.timeout(self._master_timeout_s):
                message = await context.read()
        except TimeoutError as error:
            raise TimeoutError(f"silent for {self._master_timeout_s:g} s") from error
        return decode_to_worker(message) if isinstance(message, wire.ToWorker) else None


async def _tell_why(context: Context, reader: "asyncio.Task[None]", writer: "asyncio.Task[None]") -> None:
    """End the call with what was wrong about the master, if anything was. Both tasks are done."""
    for task in (writer, reader):
        problem = None if task.cancelled() else task.exception()
        if task is reader and isinstance(problem, ValueError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        elif task is reader and isinstance(problem, TimeoutError):
            logger.warning("a master was %s", problem)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(problem))
        elif problem is not None:
            raise problem
