"""Clients that ask for a stream and do not read it."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import grpc
import pytest

from master.edge.grpc.server import client_server
from master.output import GenerationOutput
from master.request import GenerationRequest
from protos import inference_pb2 as wire
from protos.inference_pb2_grpc import InferenceStub
from tests.grpc_calls import all_of
from tests.scripted_service import ScriptedService

LIMIT_S = 60.0
NUM_STALLED = 8
# A window so small that the stream does not fit into it.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
LONG = wire.GenerateRequest(token_ids=wire.TokenIds(ids=[40] * 20_000))


class Counting(ScriptedService):
    """`ended` can be acquired once for each generation that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Semaphore(0)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        try:
            async for output in super().generate(request):
                yield output
        finally:
            self.ended.release()


@pytest.mark.parametrize(("patience_s", "deadline_s"), [(0.1, 3600.0), (3600.0, 1.0)])
async def test_a_stream_that_nobody_reads_holds_no_request(
    patience_s: float, deadline_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """R15: neither beyond the time for slow readers nor beyond the request's own limit."""
    caplog.set_level(logging.INFO)
    service = Counting()
    server = client_server(service, "127.0.0.1", 0, slow_reader_timeout_s=patience_s)
    await server.start()
    address = str(server.address)
    try:
        async with grpc.aio.insecure_channel(address, options=[*NARROW]) as channel, asyncio.timeout(LIMIT_S):
            generate = InferenceStub(channel).Generate
            stalled = [generate(LONG, timeout=deadline_s) for _ in range(NUM_STALLED)]
            for _ in stalled:
                await service.ended.acquire()
            assert await all_of(generate(wire.GenerateRequest(text="hi"), timeout=LIMIT_S))
            for call in stalled:
                call.cancel()
            assert patience_s > 1 or caplog.text.count("reads nothing and is cut") == NUM_STALLED
    finally:
        await server.close(grace_s=0)
