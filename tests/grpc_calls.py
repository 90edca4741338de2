"""Reading calls to the end, and what they failed with."""

import grpc
import pytest

from protos import inference_pb2 as wire

Call = grpc.aio.UnaryStreamCall[wire.GenerateRequest, wire.GenerateResponse]


async def all_of(call: Call) -> list[wire.GenerateResponse]:
    return [response async for response in call]


async def failure_of(call: Call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await all_of(call)
    return caught.value


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, str | bytes]:
    return dict(error.trailing_metadata())  # type: ignore[arg-type]  # pairs, which grpc-stubs does not know
