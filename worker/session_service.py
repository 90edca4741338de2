"""The sessions with masters: one stream each, the legs behind them."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

import grpc
import grpc.aio

from protos.session_identity import prove, version_mismatch
from protos.session_messages import (
    REPORT_INTERVAL_S,
    Cancel,
    DecodeHere,
    Drain,
    Heartbeat,
    Hello,
    LoadReport,
    SnapshotRequest,
    Standing,
    Start,
    ToMaster,
    Welcome,
)
from protos.session_pb2_grpc import WorkerServicer
from serving.keys import Keys
from worker.faults.messages import MessageFaults
from worker.legs.leg_life import Legs
from worker.master_call import Context, MasterCall
from worker.master_link import MasterLink
from worker.standings import Standings

logger = logging.getLogger(__name__)


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
        keys: Keys | None = None,
    ) -> None:
        """`master_timeout_s`: what a master that says nothing for so long is gone.

        `keys`: the cluster's secrets; this worker proves that it knows the one that a master presents.
        """
        self._legs = legs
        self._welcome = welcome
        self._load = load
        self._drain = drain
        self._master_timeout_s = master_timeout_s
        self._faults = faults
        self._keys = keys
        self.standings = Standings()
        self._links: set[MasterLink] = set()

    @property
    def num_sessions(self) -> int:
        return len(self._links)

    async def Session(self, request_iterator: object, context: Context) -> None:
        """Runs until the master leaves, falls silent or sends what makes no sense; its legs end with it."""
        call = MasterCall(context, self._master_timeout_s)
        try:
            hello = await call.read()
            if not isinstance(hello, Hello):
                raise ValueError(f"the first message must be hello, not {type(hello).__name__}")
        except (ValueError, TimeoutError) as error:
            await call.fail(error)
        await self._refuse_other_versions(hello, context)
        link = MasterLink(hello.master_id)
        self._legs.attach(link)
        self._links.add(link)
        reader = asyncio.create_task(self._obey(call, link), name=f"session of {link.master_id}")
        writer = asyncio.create_task(self._report(call, link, hello), name=f"reports to {link.master_id}")
        try:
            # A write may wait for ever on a master that does not read; the reader notices when it is gone.
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._legs.detach(link)
            self._links.remove(link)
            if not any(link.master_id == other.master_id for other in self._links):
                self.standings.leave(link.master_id)
            reader.cancel()
            writer.cancel()
            await asyncio.wait([reader, writer])
        for task in (writer, reader):
            if not task.cancelled() and (problem := task.exception()) is not None:
                await call.fail(problem)

    async def _refuse_other_versions(self, hello: Hello, context: Context) -> None:
        mine = self._welcome()
        problem = version_mismatch(mine.protocol, mine.version, hello.protocol, hello.version)
        if problem is not None:
            self.standings.refuse(hello.master_id, problem)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)

    async def _report(self, call: MasterCall, link: MasterLink, hello: Hello) -> None:
        """Send welcome, what the legs deliver, and the load at least every REPORT_INTERVAL_S."""
        secret = call.presented_key(self._keys)
        proof = b"" if secret is None else prove(secret, hello.nonce)
        await self._write(call, dataclasses.replace(self._welcome(), proof=proof))
        loop = asyncio.get_running_loop()
        next_load_s = loop.time()
        while True:
            if loop.time() >= next_load_s:
                await self._write(call, self._load())
                next_load_s = loop.time() + REPORT_INTERVAL_S
            for message in await link.take(next_load_s - loop.time()):
                await self._write(call, message)

    async def _write(self, call: MasterCall, message: ToMaster) -> None:
        if self._faults is None or await self._faults.lets_pass():
            await call.write(message)

    async def _obey(self, call: MasterCall, link: MasterLink) -> None:
        """Returns when the master left. Raises what `read` does, ValueError also for a second hello."""
        while True:
            match message := await call.read():
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
                case Standing():
                    self.standings.hear(link.master_id, message)
                case SnapshotRequest():
                    self._legs.send_snapshot(link)
                case Heartbeat():
                    pass
                case Hello():
                    raise ValueError("hello came twice")
