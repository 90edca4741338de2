"""TLS of the HTTP and gRPC servers, with certificates made here."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from config.flags import FlagError
from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from protos import inference_pb2 as wire
from protos.inference_pb2_grpc import InferenceStub
from serving.http_server import HttpServer
from serving.server_tls import ServerTls, server_tls
from tests import scripted_service
from tests.http_client import Connection
from tests.http_service import HttpService
from tests.tls_files import make_certificate

TIMEOUT_S = 30.0
HI = b'{"stream":true,"messages":[{"role":"user","content":"hi"}]}'


@contextlib.asynccontextmanager
async def https(tls: ServerTls) -> AsyncIterator[HttpServer]:
    server = HttpServer(create_app(HttpService(), HttpConfig(), CollectorRegistry()), "127.0.0.1", 0, tls=tls.context)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(deadline_s=5)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


async def connect(server: HttpServer, context: ssl.SSLContext) -> Connection:
    opening = asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
    return Connection(*await asyncio.wait_for(opening, TIMEOUT_S))


async def request(server: HttpServer, context: ssl.SSLContext) -> bytes:
    """The stream of a chat, whole."""
    connection = await connect(server, context)
    headers = {"content-type": "application/json", "content-length": str(len(HI)), "connection": "close"}
    connection.send_head("POST", "/v1/chat/completions", headers)
    connection.writer.write(HI)
    try:
        return await connection.rest()
    finally:
        connection.leave()


async def test_https_streams(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    async with https(ServerTls(certificate, key, None)) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        answer = await request(server, trusting(certificate))
        assert answer.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in answer
        plain = await Connection.open("127.0.0.1", server.port)
        plain.send_head("GET", "/livez", {})
        assert b"200" not in await plain.rest()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(server, ssl.create_default_context())


def test_https_streams_on_uvloop(tmp_path: Path) -> None:
    """The loop that processes run on has TLS of its own."""
    uvloop.run(test_https_streams(tmp_path))


async def test_clients_certificates_are_asked_for(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    client_key, client_certificate = make_certificate(tmp_path, "client")
    async with https(ServerTls(certificate, key, client_certificate)) as server:
        known = trusting(certificate)
        known.load_cert_chain(client_certificate, client_key)
        assert (await request(server, known)).startswith(b"HTTP/1.1 200")
        stranger = trusting(certificate)
        with contextlib.suppress(OSError):  # SSLError is one: in TLS 1.3 a client may learn it only later
            assert await request(server, stranger) == b""


async def test_a_new_certificate_is_taken_on_reload(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    tls = ServerTls(certificate, key, None)
    old = trusting(certificate)
    old_root = certificate.read_bytes()
    async with (
        https(tls) as server,
        scripted_service.serving(scripted_service.ScriptedService(), "localhost", tls=tls) as rpc,
    ):
        assert await request(server, old)
        certificate.write_text("half-written")
        tls.reload()
        assert await request(server, old)
        make_certificate(tmp_path, "server")
        tls.reload()
        assert await request(server, trusting(certificate))
        with pytest.raises(ssl.SSLCertVerificationError):
            await request(server, old)
        for root, is_trusted in ((certificate.read_bytes(), True), (old_root, False)):
            credentials = grpc.ssl_channel_credentials(root)
            async with grpc.aio.secure_channel(str(rpc.address), credentials) as channel:
                call = InferenceStub(channel).ListModels(wire.ListModelsRequest(), timeout=TIMEOUT_S)
                if is_trusted:
                    assert (await call).models
                else:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await call


def test_files_that_do_not_go_together_are_refused_by_flag(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "server")
    other_key, _ = make_certificate(tmp_path, "other")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nothing")
    cases = [
        ((None, key, None), "tls_key_file"),
        ((None, None, certificate), "tls_client_ca_file"),
        ((certificate, None, None), "tls_cert_file"),
        ((certificate, other_key, None), "tls_cert_file"),
        ((nonsense, key, None), "tls_cert_file"),
        ((certificate, tmp_path / "absent", None), "tls_cert_file"),
        ((certificate, key, nonsense), "tls_cert_file"),
    ]
    for files, flag in cases:
        with pytest.raises(FlagError) as caught:
            server_tls("tls_", *files)
        assert caught.value.flag == flag, files
    assert server_tls("tls_", None, None, None) is None
    assert server_tls("tls_", certificate, key, certificate) is not None
