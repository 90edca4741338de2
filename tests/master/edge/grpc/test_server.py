import asyncio
import errno
import logging
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2

from master.edge.grpc.server import client_server
from protos import inference_pb2 as wire
from protos.inference_pb2_grpc import InferenceStub
from serving.grpc_server import MESSAGE_LIMIT_BYTES
from tests.scripted_service import ScriptedService, serving
from tests.tls_files import make_certificate

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
TIMEOUT_S = 30.0


async def test_a_port_that_is_taken_is_refused_with_the_reason(service: ScriptedService) -> None:
    async with serving(service) as server:
        second = client_server(service, "127.0.0.1", server.address.port)
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{server.address.port}: Address already in use") as caught:
            await second.start()
        await second.close(grace_s=0)
        assert caught.value.errno == errno.EADDRINUSE


async def test_a_host_that_is_not_ours_is_refused_with_the_reason(service: ScriptedService) -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.1:0: Cannot assign requested address"):
        await client_server(service, "203.0.113.1", 0).start()


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "localhost"])
async def test_serves_on_each_form_of_host(service: ScriptedService, host: str) -> None:
    async with serving(service, host) as server, grpc.aio.insecure_channel(str(server.address)) as channel:
        models = await InferenceStub(channel).ListModels(wire.ListModelsRequest(), timeout=TIMEOUT_S)
        assert server.address.host == host
        assert [model.id for model in models.models] == ["tiny", "alias"]


async def test_messages_above_the_limit_are_refused_and_those_below_are_read(service: ScriptedService) -> None:
    options = [
        ("grpc.max_send_message_length", 2 * MESSAGE_LIMIT_BYTES),
        ("grpc.max_receive_message_length", 2 * MESSAGE_LIMIT_BYTES),
    ]
    async with serving(service) as server, grpc.aio.insecure_channel(str(server.address), options) as channel:
        detokenize = InferenceStub(channel).Detokenize
        # more than gRPC's own default of 4 MiB
        detokenized = await detokenize(wire.DetokenizeRequest(token_ids=[40] * 5_000_000), timeout=TIMEOUT_S)
        assert len(detokenized.text) == 5_000_000
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await detokenize(wire.DetokenizeRequest(model="x" * (MESSAGE_LIMIT_BYTES + 1)), timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.parametrize("symbol", ["pdserve.v1.Inference", "pdserve.v1.Inference.Generate", "pdserve.v1.Usage"])
async def test_reflection_lists_and_describes_the_services(
    channel: grpc.aio.Channel, version: str, symbol: str
) -> None:
    """A13: newer tools ask for v1 only, and some describe a method by its own name."""
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="pdserve.v1.Nothing.Generate"),
    ]
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    listed, described, unknown = [response async for response in ask(iter(requests), timeout=TIMEOUT_S)]
    names = {service.name for service in listed.list_services_response.service}
    assert {"pdserve.v1.Inference", "pdserve.v1.Cluster", "grpc.health.v1.Health"} <= names
    assert {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} <= names
    files = map(FileDescriptorProto.FromString, described.file_descriptor_response.file_descriptor_proto)
    assert "protos/inference.proto" in [file.name for file in files]
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_every_service_that_reflection_lists_is_described(channel: grpc.aio.Channel) -> None:
    """A13: tools that describe a whole server ask for each in turn, reflection itself among them."""
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (listed,) = [
        response
        async for response in ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=TIMEOUT_S)
    ]
    names = [service.name for service in listed.list_services_response.service]
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
    answers = [response async for response in ask(iter(requests), timeout=TIMEOUT_S)]
    for name, answer in zip(names, answers, strict=True):
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        assert name in {f"{file.package}.{service.name}" for file in files for service in file.service}


@pytest.mark.parametrize("name", ["", "pdserve.v1.Inference", "pdserve.v1.Cluster"])
async def test_health_is_readiness(channel: grpc.aio.Channel, service: ScriptedService, name: str) -> None:
    check = HealthStub(channel).Check
    request = health_pb2.HealthCheckRequest(service=name)
    assert (await check(request, timeout=TIMEOUT_S)).status == SERVING
    service.reason = "no decode worker"
    assert (await check(request, timeout=TIMEOUT_S)).status == NOT_SERVING
    service.reason = None
    assert (await check(request, timeout=TIMEOUT_S)).status == SERVING


async def test_health_of_an_unknown_service(channel: grpc.aio.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="other")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await HealthStub(channel).Check(request, timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = HealthStub(channel).Watch(request, timeout=TIMEOUT_S)
    assert (await watch.read()).status == SERVICE_UNKNOWN
    watch.cancel()


async def test_every_watcher_sees_health_flip_after_another_has_left(
    channel: grpc.aio.Channel, service: ScriptedService
) -> None:
    watches = [HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S) for _ in range(3)]
    assert [(await watch.read()).status for watch in watches] == [SERVING] * 3
    watches.pop().cancel()
    service.reason = "no decode worker"
    assert [(await watch.read()).status for watch in watches] == [NOT_SERVING] * 2


async def test_closing_tells_watchers_and_does_not_wait_for_them(service: ScriptedService) -> None:
    server = client_server(service, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        watch = HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        await asyncio.wait_for(server.close(grace_s=10 * TIMEOUT_S), TIMEOUT_S)
        assert (await watch.read()).status == NOT_SERVING
        assert not isinstance(await watch.read(), health_pb2.HealthCheckResponse)


async def test_closing_lets_a_running_request_end(service: ScriptedService) -> None:
    service.resume.clear()
    server = client_server(service, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        call = InferenceStub(channel).Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S)
        responses = [await call.read()]
        closing = asyncio.create_task(server.close(grace_s=TIMEOUT_S))
        service.resume.set()
        while isinstance(response := await call.read(), wire.GenerateResponse):
            responses.append(response)
        await closing
    assert responses[-1].HasField("usage")


async def test_closing_cancels_a_request_that_outlasts_the_grace_time(service: ScriptedService) -> None:
    service.resume.clear()
    server = client_server(service, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(str(server.address)) as channel:
        call = InferenceStub(channel).Generate(wire.GenerateRequest(text="hello"))
        await call.read()
        await server.close(grace_s=0)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
    await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)


async def test_a_fault_of_ours_is_internal_and_logged_without_its_words(
    channel: grpc.aio.Channel, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    service.refusals.append(KeyError("secret"))
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
        await InferenceStub(channel).Generate(wire.GenerateRequest(text="hello"), timeout=TIMEOUT_S).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert "KeyError: 'secret'" in caplog.text


async def test_serves_tls(service: ScriptedService, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    server = client_server(service, "127.0.0.1", 0, credentials=credentials)
    await server.start()
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    async with grpc.aio.secure_channel(f"localhost:{server.address.port}", trusted) as channel:
        assert await InferenceStub(channel).ListModels(wire.ListModelsRequest(), timeout=TIMEOUT_S)
    await server.close(grace_s=0)
