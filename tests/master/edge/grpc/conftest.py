from collections.abc import AsyncIterator

import grpc
import pytest

from protos.inference_pb2_grpc import InferenceStub
from tests.scripted_service import ScriptedService, serving


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def channel(service: ScriptedService) -> AsyncIterator[grpc.aio.Channel]:
    async with serving(service) as server, grpc.aio.insecure_channel(str(server.address)) as opened:
        yield opened


@pytest.fixture
def inference(channel: grpc.aio.Channel) -> InferenceStub:
    return InferenceStub(channel)
