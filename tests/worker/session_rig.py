"""A session service with a real engine behind it, and masters' ends of its sessions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from protos import session_pb2 as wire
from protos.sampling_messages import SamplingParams
from protos.session_codec import decode_to_master, encode_to_worker
from protos.session_identity import PROTOCOL
from protos.session_messages import (
    CacheEvents,
    Hello,
    LoadReport,
    Role,
    Stage,
    Start,
    Step,
    ToMaster,
    ToWorker,
    Welcome,
)
from protos.session_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from serving.keys import Keys
from tests.cluster import eventually
from tests.worker.engines.torch.engine_rig import GREEDY, HOST, Node, Outcome
from tests.worker.engines.torch.reference import prompt
from worker.faults.messages import MessageFaults
from worker.rpc_server import keepalive
from worker.session_service import SessionService

LIMIT_S = 20.0
HELLO = Hello("master", PROTOCOL, "1", b"nonce")

Call = grpc.aio.StreamStreamCall[wire.ToWorker, wire.ToMaster]


class Served:
    """A session service on a free port. Its `welcome` and `load` name numbers of their own."""

    def __init__(
        self,
        node: Node,
        master_timeout_s: float,
        keys: Keys | None = None,
        faults: MessageFaults | None = None,
        process_silence_s: float = LIMIT_S,
    ) -> None:
        self.num_drains = 0
        self.node = node
        self.sessions = SessionService(
            node.legs,
            welcome=self.welcome,
            load=lambda: node.engine.load,
            drain=self._drain,
            master_timeout_s=master_timeout_s,
            faults=faults,
            keys=keys,
        )
        self._server = grpc.aio.server(options=keepalive(process_silence_s))
        add_WorkerServicer_to_server(self.sessions, self._server)
        self.port = self._server.add_insecure_port(f"{HOST}:0")

    def welcome(self) -> Welcome:
        limits = self.node.engine.limits
        return Welcome(
            "instance",
            Role.MIX,
            self.node.engine.identity.model,
            5,
            self.node.layout.fingerprint(),
            limits.block_size,
            limits.num_blocks,
            limits.max_context,
            limits.max_num_seqs,
            "1",
            PROTOCOL,
            1,
        )

    def _drain(self) -> None:
        self.num_drains += 1

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(0)
        await until(lambda: self.sessions.num_sessions == 0)
        await asyncio.to_thread(self.node.flush)  # the engine has let go of every link of this loop


class Session:
    """A master's end of one session."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outcomes: dict[int, Outcome] = {}
        self.num_steps = 0
        self.num_loads = 0
        self.snapshots: list[CacheEvents] = []

    async def write(self, *messages: ToWorker) -> None:
        for message in messages:
            await self.call.write(encode_to_worker(message))

    async def read(self) -> ToMaster:
        async with asyncio.timeout(LIMIT_S):
            message = await self.call.read()
        assert isinstance(message, wire.ToMaster), f"the session ended: {await self.call.details()}"
        return decode_to_master(message)

    async def result(self, *legs: int) -> list[Outcome]:
        """Reads until the legs have ended."""
        outcomes = [self.outcomes.setdefault(leg, Outcome()) for leg in legs]
        while not all(outcome.ended for outcome in outcomes):
            self.take(await self.read())
        return outcomes

    def take(self, message: ToMaster) -> None:
        match message:
            case Step(updates):
                self.num_steps += 1
                for update in updates:
                    self.outcomes.setdefault(update.leg, Outcome()).add(update)
            case LoadReport():
                self.num_loads += 1
            case CacheEvents():
                self.snapshots.append(message)

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the worker ended the session; reads what comes before."""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), wire.ToMaster):
                    pass
            return await self.call.code(), await self.call.details() or ""


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition, "what the test waits for", LIMIT_S)


def whole(leg: int, length: int = 20, sampling: SamplingParams = GREEDY) -> Start:
    return Start(leg, f"r{leg}", Stage.WHOLE, prompt(length), sampling, time_limit_s=60.0)


@asynccontextmanager
async def stream(
    served: Served, options: Sequence[tuple[str, int]] = (), metadata: Sequence[tuple[str, str]] = ()
) -> AsyncIterator[Session]:
    """A stream on which nothing was said yet."""
    async with grpc.aio.insecure_channel(f"{HOST}:{served.port}", options=[*options]) as channel:
        yield Session(WorkerStub(channel).Session(metadata=[*metadata]))


@asynccontextmanager
async def session(served: Served, options: Sequence[tuple[str, int]] = ()) -> AsyncIterator[Session]:
    async with stream(served, options) as begun:
        await begun.write(HELLO)
        assert await begun.read() == served.welcome()
        yield begun
