"""API keys and certificates, through both clients."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from client.async_client import AsyncClient
from client.errors import NotFound, Unauthenticated, Unavailable
from client.retries import RetryPolicy
from client.sync_client import Client
from serving.keys import Keys
from serving.server_tls import ServerTls
from tests.scripted_service import ScriptedService, serving
from tests.tls_files import make_certificate

TIMEOUT_S = 30.0
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def address(service: ScriptedService) -> AsyncIterator[str]:
    """Where a master listens that knows the API keys `secret` and `other`."""
    async with serving(service, keys=Keys(["secret", "other"])) as server:
        yield str(server.address)


async def test_a_key_opens_every_call_of_both_clients(address: str, service: ScriptedService) -> None:
    async with AsyncClient(address, api_key="secret") as client:
        assert (await client.generate("hello", max_tokens=2)).token_ids
        assert (await client.chat([{"role": "user", "content": "hello"}], max_tokens=2)).token_ids
        assert await client.models() and await client.cluster() and await client.tokenize("a")
        await client.drain("decode-0")
        service.running_ids.add("request-7")
        await client.cancel("request-7")
        with pytest.raises(NotFound):
            await client.cancel("request-70")
    with Client(address, api_key="other") as blocking:
        assert (await asyncio.to_thread(blocking.generate, "hello", max_tokens=2)).token_ids
        await asyncio.to_thread(blocking.drain, "decode-0")
        await asyncio.to_thread(blocking.cancel, "request-7")
    assert service.drained == ["decode-0"] * 2
    assert service.cancelled == ["request-7"] * 2


@pytest.mark.parametrize("key", ["", "secre", "secret,other"])
async def test_without_a_valid_key_nothing_is_served(address: str, service: ScriptedService, key: str) -> None:
    async with AsyncClient(address, api_key=key) as client:
        with pytest.raises(Unauthenticated) as caught:
            await client.generate("hello")
        assert "secret" not in str(caught.value)
        with pytest.raises(Unauthenticated):
            await client.drain("decode-0")
        with pytest.raises(Unauthenticated):
            await client.cancel("request-1")
    assert service.requests == [] and service.drained == []


async def test_the_key_of_the_environment_is_taken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSERVE_API_KEY", "secret, other")
    async with AsyncClient(address) as client:
        assert await client.models()
    async with AsyncClient(address, api_key="wrong") as client:
        with pytest.raises(Unauthenticated):
            await client.models()


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="ASCII") as caught:
        Client("localhost:1", api_key="sé cret")
    assert "cret" not in str(caught.value)


async def test_health_and_reflection_need_no_key(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health = await HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
        assert [response async for response in call]


async def test_a_removed_key_is_refused_without_a_restart(service: ScriptedService, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n")
    async with serving(service, keys=Keys((), file, check_interval_s=0.0)) as server:
        async with AsyncClient(str(server.address), api_key="one") as client:
            assert await client.models()
            file.write_text("two\n")
            with pytest.raises(Unauthenticated):
                await client.models()
        async with AsyncClient(str(server.address), api_key="two") as client:
            assert await client.models()


async def test_a_master_may_ask_for_clients_certificates(service: ScriptedService, tmp_path: Path) -> None:
    server_key, server_cert = make_certificate(tmp_path, "server")
    key, cert = make_certificate(tmp_path, "client")
    tls = ServerTls(server_cert, server_key, client_ca_file=cert)
    async with serving(service, host="localhost", tls=tls) as server:
        address = str(server.address)
        async with AsyncClient(address, ca_file=server_cert, cert_file=cert, key_file=key) as client:
            assert await client.models()
        with Client(address, ca_file=server_cert, cert_file=cert, key_file=key) as blocking:
            assert await asyncio.to_thread(blocking.models)
        async with AsyncClient(address, ca_file=server_cert, retries=ONCE) as stranger:
            with pytest.raises(Unavailable):
                await stranger.models()


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "client")
    for cert_file, key_file in ((certificate, None), (None, key), (certificate, key)):
        with pytest.raises(ValueError, match=r"_file"):
            Client("localhost:1", cert_file=cert_file, key_file=key_file)
