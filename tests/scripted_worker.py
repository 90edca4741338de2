"""A worker whose words a test chooses: a real gRPC server with the real session protocol, and no engine."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TypeVar

import grpc
import grpc.aio

from master.dispatch.flags import DispatchFlags
from master.dispatch.parts import DispatchParts, dispatch_parts
from master.workers.greeting import MasterIdentity
from master.workers.session_state import Patience
from master.workers.workers import Workers
from protos import session_pb2 as wire
from protos.sampling_messages import FinishReason
from protos.served_model import ServedModel
from protos.session_codec import decode_to_worker, encode_to_master
from protos.session_identity import PROTOCOL
from protos.session_messages import (
    Failure,
    Heartbeat,
    Hello,
    LegUpdate,
    LoadReport,
    Prefilled,
    Role,
    Stage,
    Standing,
    Start,
    Started,
    Step,
    TokenDelta,
    ToMaster,
    ToWorker,
    Transferred,
    Welcome,
)
from protos.session_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

PATIENCE_S = 20.0
VOCAB_SIZE = 512
DEFAULTS = DispatchFlags()
LAYOUT = b"layout of tests!"
MASTER = MasterIdentity("master", version="0")
MODEL = ServedModel("tiny", "00", "float32")

M = TypeVar("M")
Context = grpc.aio.ServicerContext[wire.ToWorker, wire.ToMaster]


class ScriptedWorker(WorkerServicer):
    """An asynchronous context manager. It greets every master and reports its load once; the rest is the test's."""

    def __init__(
        self,
        name: str,
        role: Role,
        *,
        port: int = 0,
        instance: str | None = None,
        num_blocks: int = 100,
        max_context: int = 1000,
        layout: bytes = LAYOUT,
        model: ServedModel = MODEL,
        load: LoadReport | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.address = ""
        self.num_sessions = 0  # so far
        self._port = port
        self._load = load
        self.welcome = Welcome(
            instance=name if instance is None else instance,
            role=role,
            model=model,
            incarnation=7,
            layout_fingerprint=layout,
            block_size=4,
            num_blocks=num_blocks,
            max_context=max_context,
            max_num_seqs=8,
            version="0",
            protocol=PROTOCOL,
            transfer_protocol=1,
        )
        self.standings: list[Standing] = []  # what masters said, session after session
        self._received: deque[ToWorker] = deque()
        self._has_received = asyncio.Event()
        self._to_say: asyncio.Queue[ToMaster | None] = asyncio.Queue()

    async def __aenter__(self) -> "ScriptedWorker":
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        add_WorkerServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.address = f"127.0.0.1:{self._port}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """Every session ends at once. Harmless twice."""
        await self._server.stop(0)

    def successor(self) -> "ScriptedWorker":
        """The same worker's next life, on the same port."""
        return ScriptedWorker(self.name, self.role, port=self._port)

    async def Session(self, request_iterator: object, context: Context) -> None:
        await context.read()
        self.num_sessions += 1
        await context.write(encode_to_master(self.welcome))
        load = self._load or LoadReport(self.role, available_blocks=self.welcome.num_blocks)
        await context.write(encode_to_master(load))
        reader = asyncio.create_task(self._read(context))
        try:
            while (message := await self._to_say.get()) is not None:
                await context.write(encode_to_master(message))
        finally:
            reader.cancel()

    async def _read(self, context: Context) -> None:
        while isinstance(message := await context.read(), wire.ToWorker):
            decoded = decode_to_worker(message)
            if isinstance(decoded, Standing):
                self.standings.append(decoded)
            elif not isinstance(decoded, Heartbeat | Hello):
                self._received.append(decoded)
                self._has_received.set()

    def say(self, *messages: ToMaster) -> None:
        for message in messages:
            self._to_say.put_nowait(message)

    def hang_up(self) -> None:
        """End the session, as a worker that leaves does."""
        self._to_say.put_nowait(None)

    async def hear(self, kind: type[M]) -> M:
        """The next message that is no heartbeat; it must be of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._received:
                self._has_received.clear()
                await self._has_received.wait()
        message = self._received.popleft()
        assert isinstance(message, kind), message
        return message

    async def hear_another_start(self) -> Start:
        """The next leg, whatever else is said before it."""
        while True:
            message: object = await self.hear(object)
            if isinstance(message, Start):
                return message

    @property
    def has_heard(self) -> bool:
        """Whether something is there for `hear`."""
        return bool(self._received)

    def update(self, start: Start, **what: object) -> None:
        self.say(Step((LegUpdate(start.leg, **what),)))  # type: ignore[arg-type]

    def begins(self, start: Start, cached_tokens: int = 0) -> None:
        """Prefill, or the pull, has begun."""
        handle = b"of leg %d" % start.leg
        started = Started(cached_tokens, 0.0, handle if start.stage is Stage.PREFILL else None)
        self.update(start, started=started)

    def emits(
        self, start: Start, position: int, *token_ids: int, sequence: int = 0, finish: FinishReason | None = None
    ) -> None:
        self.update(start, deltas=(TokenDelta(sequence, position, token_ids, (), finish),))

    def prefills(self, start: Start, *first_tokens: int) -> None:
        """Prefill is done, and chose each sequence's next token."""
        deltas = tuple(
            TokenDelta(sequence, len(start.output_ids), (token_id,))
            for sequence, token_id in zip(start.sequences, first_tokens, strict=True)
        )
        self.update(start, prefilled=Prefilled(len(start.prompt_ids), 0.5), deltas=deltas)

    def receives(self, start: Start, *first_tokens: int) -> None:
        """The KV has arrived, with the tokens that prefill chose."""
        deltas = tuple(
            TokenDelta(sequence, len(start.output_ids), (token_id,))
            for sequence, token_id in zip(start.sequences, first_tokens, strict=True)
        )
        self.update(start, transferred=Transferred("tcp", 64, 2, 1, 0.25, 0.125), deltas=deltas)

    def fails(self, start: Start, failure: Failure) -> None:
        self.update(start, failure=failure)


class Fleet:
    """The master's view of some scripted workers; an asynchronous context manager."""

    def __init__(self, silence_s: float = PATIENCE_S) -> None:
        self._changed = asyncio.Event()
        self.workers = Workers(MASTER, patience=Patience(silence_s, quiet_s=PATIENCE_S), on_change=self._changed.set)

    async def __aenter__(self) -> "Fleet":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.workers.close()

    def parts(self, flags: DispatchFlags = DEFAULTS) -> DispatchParts:
        """What a dispatcher over these workers shares between its requests."""
        return dispatch_parts(self.workers, VOCAB_SIZE, flags)

    @property
    def usable(self) -> set[str]:
        return {view.name for view in self.workers.views()}

    async def join(self, *workers: ScriptedWorker) -> None:
        """Returns when all of them are usable; their names are their addresses."""
        for worker in workers:
            self.workers.add_static(worker.address)
        await self.until(lambda: self.usable >= {worker.address for worker in workers})

    async def leave(self, worker: ScriptedWorker) -> None:
        """The worker dies; returns when the master has noticed."""
        await worker.die()
        await self.until(lambda: worker.address not in self.usable)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds after a change of what is usable."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def fleet_of(*roles: Role) -> AsyncIterator[tuple[Fleet, list[ScriptedWorker]]]:
    """Workers of these roles, connected."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(ScriptedWorker(f"worker-{number}", role))
            for number, role in enumerate(roles)
        ]
        fleet = await stack.enter_async_context(Fleet())
        await fleet.join(*workers)
        yield fleet, workers


async def soon(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds. Fails when it does not."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def finished(task: "asyncio.Task[None]") -> None:
    """The end of a task that was told to end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
