import asyncio
from pathlib import Path

import grpc
import pytest

from client.async_client import AsyncClient
from client.channel import target_of
from client.errors import Unavailable
from client.retries import RetryPolicy
from client.sync_client import Client
from master.edge.grpc.server import client_server
from tests.scripted_service import ScriptedService, serving
from tests.tls_files import make_certificate

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize("address", ["localhost:28889", "127.0.0.1:1", "[::1]:65535", "master.example:443"])
def test_addresses_are_host_and_port(address: str) -> None:
    assert target_of(address) == f"dns:///{address}"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        ":1",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:x",
        "::1:80",
        "http://a:80",
        "a:٣",
    ],
)
def test_other_forms_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        Client(address)


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_both_clients_reach_each_form_of_host(host: str) -> None:
    async with serving(ScriptedService(), host) as server:
        async with AsyncClient(str(server.address)) as client:
            assert (await client.models())[0].id == "tiny"
        with Client(str(server.address)) as blocking:
            assert (await asyncio.to_thread(blocking.models))[0].id == "tiny"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(ScriptedService()) as server:
        async with AsyncClient(str(server.address), retries=ONCE) as client:
            assert (await client.models())[0].id == "tiny"
        with Client(str(server.address), retries=ONCE) as blocking:
            assert (await asyncio.to_thread(blocking.models))[0].id == "tiny"


async def test_no_master_is_unavailable() -> None:
    service = ScriptedService()
    async with serving(service) as server:
        address = str(server.address)
    async with AsyncClient(address, retries=ONCE) as client:
        with pytest.raises(Unavailable):
            await client.models()
    with Client(address, retries=ONCE) as blocking, pytest.raises(Unavailable):
        await asyncio.to_thread(blocking.generate, "hello")


async def test_a_master_that_comes_back_is_found_again() -> None:
    service = ScriptedService()
    patient = RetryPolicy(max_attempts=100, first_wait_s=0.05, longest_wait_s=0.05)
    async with serving(service) as server:
        port = server.address.port
        client = AsyncClient(str(server.address), retries=patient, timeout_s=30)
        await client.models()
    answer = asyncio.create_task(client.generate("hello", add_special_tokens=False))
    restarted = client_server(service, "127.0.0.1", port)
    await restarted.start()
    assert (await answer).text == "hello"
    await client.close()
    await restarted.close(grace_s=0)


async def test_tls_trusts_the_given_certificates_only(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    _, other = make_certificate(tmp_path, "other")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    server = client_server(ScriptedService(), "127.0.0.1", 0, credentials=credentials)
    await server.start()
    address = f"localhost:{server.address.port}"
    async with AsyncClient(address, ca_file=certificate) as client:
        assert (await client.models())[0].id == "tiny"
    with Client(address, ca_file=str(certificate)) as blocking:
        assert (await asyncio.to_thread(blocking.models))[0].id == "tiny"
    async with AsyncClient(address, ca_file=other, retries=ONCE) as client:
        with pytest.raises(Unavailable):
            await client.models()
    await server.close(grace_s=0)
