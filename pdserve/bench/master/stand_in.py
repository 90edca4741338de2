"""`python -m pdserve.bench.master.stand_in ROLE ETCD`: a worker without an engine, so that only its master costs time.

It speaks the session's protocol. A prefill leg is answered at once. A decode leg gets one token a step for each of its
sequences, and a request's seed says how many milliseconds a step takes: 0 is as fast as the master reads.
"""

import asyncio
import sys
import time
from importlib.metadata import version

import grpc
import grpc.aio
import uvloop

from protos import session_pb2 as wire
from protos.sampling_codec import pack_ids
from protos.sampling_pb2 import FINISH_REASON_LENGTH
from protos.served_model import ServedModel
from protos.session_codec import decode_to_worker, encode_to_master
from protos.session_identity import PROTOCOL
from protos.session_messages import (
    REPORT_INTERVAL_S,
    Cancel,
    LoadReport,
    Role,
    Stage,
    Start,
    Welcome,
)
from protos.session_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.registration import Registration
from worker.registration import instance_record

HOST = "127.0.0.1"
CLUSTER = "default"
MODEL = ServedModel("stand-in", "00", "float32")
NUM_BLOCKS = 1 << 20
MAX_CONTEXT = 8192
MAX_NUM_SEQS = 1 << 14
# Letters and the like in most vocabularies; which text they are does not matter.
TOKEN_IDS = range(40, 90)
HANDLE = b"stand-in"

Context = grpc.aio.ServicerContext[wire.ToWorker, wire.ToMaster]


class StandIn(WorkerServicer):
    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome

    async def Session(self, request_iterator: object, context: Context) -> None:
        await context.read()
        await context.write(encode_to_master(self._welcome))
        master = _Master(context, self._welcome.role)
        tasks = [asyncio.create_task(part) for part in (master.hear(), master.report())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            master.close()
            for task in tasks:
                task.cancel()


class _Master:
    """One that is connected. Its legs step together with those of the same pace."""

    def __init__(self, context: Context, role: Role) -> None:
        self._context = context
        self._role = role
        self._writing = asyncio.Lock()
        self._paces: dict[int, _Pace] = {}
        self._prefilled: list[wire.LegUpdate] = []
        self._has_prefilled = asyncio.Event()
        self._answering = asyncio.create_task(self._answer())

    async def hear(self) -> None:
        while isinstance(message := await self._context.read(), wire.ToWorker):
            match decode_to_worker(message):
                case Start(stage=Stage.DECODE) as start:
                    self._pace(start.sampling.seed).add(start)
                case Start() as start:
                    self._prefill(start)
                case Cancel(leg):
                    for pace in self._paces.values():
                        pace.remove(leg)

    async def report(self) -> None:
        while True:
            load = LoadReport(role=self._role, available_blocks=NUM_BLOCKS, decode_step_s=0.01)
            await self.write(encode_to_master(load))
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def write(self, message: wire.ToMaster) -> None:
        async with self._writing:
            await self._context.write(message)

    def close(self) -> None:
        self._answering.cancel()
        for pace in self._paces.values():
            pace.stepping.cancel()

    def _prefill(self, start: Start) -> None:
        """The two are sent together: there is nothing to compute in between."""
        position = len(start.output_ids)
        token = pack_ids((TOKEN_IDS[position % len(TOKEN_IDS)],))
        began = wire.LegUpdate(leg=start.leg, started=wire.Started(kv_handle=HANDLE))
        done = wire.LegUpdate(
            leg=start.leg, prefilled=wire.Prefilled(computed_tokens=len(start.prompt_ids)), ended=True
        )
        for sequence in start.sequences:
            done.deltas.add(sequence=sequence, position=position, token_ids=token)
        self._prefilled += (began, done)
        self._has_prefilled.set()

    async def _answer(self) -> None:
        while True:
            await self._has_prefilled.wait()
            self._has_prefilled.clear()
            updates, self._prefilled = self._prefilled, []
            await self.write(wire.ToMaster(step=wire.Step(updates=updates)))

    def _pace(self, milliseconds: int) -> "_Pace":
        pace = self._paces.get(milliseconds)
        if pace is None:
            pace = self._paces[milliseconds] = _Pace(self, milliseconds / 1e3)
        return pace


class _Pace:
    """Decode legs whose steps take as long. Several of one sequence each are what it is made for."""

    def __init__(self, master: _Master, step_s: float) -> None:
        self._master = master
        self._step_s = step_s
        self._legs: dict[int, _DecodeLeg] = {}
        self._has_legs = asyncio.Event()
        self.stepping = asyncio.create_task(self._run())

    def add(self, start: Start) -> None:
        self._legs[start.leg] = _DecodeLeg(start)
        self._has_legs.set()

    def remove(self, number: int) -> None:
        self._legs.pop(number, None)

    async def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            if not self._legs:
                self._has_legs.clear()
                await self._has_legs.wait()
            due_s = max(due_s + self._step_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            updates = [leg.step() for leg in self._legs.values()]
            self._legs = {number: leg for number, leg in self._legs.items() if not leg.has_ended}
            await self._master.write(wire.ToMaster(step=wire.Step(updates=updates)))


class _DecodeLeg:
    def __init__(self, start: Start) -> None:
        self._number = start.leg
        self._sequences = start.sequences
        self._max_tokens = start.sampling.max_tokens
        self._num_tokens = len(start.output_ids)
        self._has_kv = False

    @property
    def has_ended(self) -> bool:
        return self._num_tokens >= self._max_tokens

    def step(self) -> wire.LegUpdate:
        """The first one brings what prefill has chosen."""
        position, self._num_tokens = self._num_tokens, self._num_tokens + 1
        update = wire.LegUpdate(leg=self._number, ended=self.has_ended)
        if not self._has_kv:
            self._has_kv = True
            update.transferred.transport = "none"
        token = pack_ids((TOKEN_IDS[position % len(TOKEN_IDS)],))
        reason = FINISH_REASON_LENGTH if self.has_ended else None
        for sequence in self._sequences:
            update.deltas.add(sequence=sequence, position=position, token_ids=token, finish_reason=reason)
        return update


def main() -> None:
    role, etcd_address = sys.argv[1:]
    uvloop.run(_serve(Role[role], etcd_address))


async def _serve(role: Role, etcd_address: str) -> None:
    """Runs until its parent ends it."""
    welcome = Welcome(
        instance=f"stand-in-{role.name.lower()}",
        role=role,
        model=MODEL,
        incarnation=time.time_ns(),
        layout_fingerprint=b"stand-in",
        block_size=16,
        num_blocks=NUM_BLOCKS,
        max_context=MAX_CONTEXT,
        max_num_seqs=MAX_NUM_SEQS,
        version=version("pdserve"),
        protocol=PROTOCOL,
        transfer_protocol=1,
    )
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    add_WorkerServicer_to_server(StandIn(welcome), server)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    async with EtcdClient(EtcdConfig(endpoints=etcd_address)) as etcd:
        Registration(etcd, CLUSTER, instance_record(welcome, f"{HOST}:1", HOST, port, 1)).start()
        await server.wait_for_termination()


if __name__ == "__main__":
    main()
