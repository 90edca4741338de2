"""What clients and proxies do to a connection, over real sockets and as raw bytes."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from master.output import GenerationOutput
from master.request import GenerationRequest
from serving import http_protocol
from serving.http_server import HttpServer
from serving.source_log import INTERVAL_S
from serving.stray_bytes import StrayBytes
from tests.http_client import Connection
from tests.http_service import HttpService, Script, serving

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
STREAMED = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
LIMIT_S = 30.0


def request(body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {CHAT} HTTP/{version}", "Host: test", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


@pytest.mark.parametrize("parts", [1, 2, 7])
async def test_an_offer_to_upgrade_is_ignored_and_the_request_served(parts: int) -> None:
    """T8: Java's client and `curl --http2` offer h2c with their first request, with a body or without."""
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        sent = (
            2 * request(BODY, *H2C) + b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        )
        size = -(-len(sent) // parts)
        for start in range(0, len(sent), size):
            connection.writer.write(sent[start : start + size])
            await connection.writer.drain()
            await asyncio.sleep(0)
        answered = b""
        for end in (b'"total_tokens"', b'"total_tokens"', b'"live"'):
            answered += await connection.read_until(end)
        assert answered.count(b"HTTP/1.1 200 OK") == 3
        connection.leave()


async def test_chunked_bodies_come_with_offers_to_upgrade_too() -> None:
    """T8"""
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        connection.send_head(
            "POST",
            CHAT,
            {"content-type": "application/json", "transfer-encoding": "chunked", "upgrade": "h2c"}
            | {"connection": "keep-alive, Upgrade"},
        )
        await connection.send_chunks([BODY[:5], BODY[5:]])
        assert (await connection.response()).status == 200
        connection.leave()


async def test_a_request_for_a_tunnel_is_refused() -> None:
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        connection.writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        assert (await connection.rest()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_a_client_of_http_1_0_gets_a_body_that_ends_with_the_connection(body: bytes) -> None:
    """T9"""
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        connection.writer.write(request(body, version="1.0"))
        head, _, answer = (await connection.rest()).partition(b"\r\n\r\n")
        assert b" 200 " in head and b"transfer-encoding" not in head.lower()
        if body is BODY:
            assert json.loads(answer)["choices"]
        else:
            assert answer.startswith(b"data: {") and answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_a_client_that_has_closed_its_side_gets_its_answer(body: bytes) -> None:
    """T10"""
    service, script = HttpService(), Held()
    service.script = script(service)
    async with serving(service) as edge:
        connection = await edge.client.open()
        connection.writer.write(request(body))
        connection.writer.write_eof()
        async with asyncio.timeout(LIMIT_S):
            await service.opened.acquire()
        script.resume.set()
        answer = await connection.rest()  # the connection does not wait for another request
        assert answer.startswith((b"HTTP/1.1 200", http_protocol.PROBE))
        assert b"total_tokens" in answer or answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_a_client_that_has_left_for_good_is_noticed_by_a_probe(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """T10: its system says the same as that of a client which only sends no more."""
    monkeypatch.setattr(http_protocol, "PROBE_S", 0.01)
    service, script = HttpService(), Held()
    service.script = script(service)
    async with serving(service) as edge:
        connection = await edge.client.open()
        connection.writer.write(request(body))
        async with asyncio.timeout(LIMIT_S):
            await service.opened.acquire()
            connection.writer.close()
            await service.all_closed.wait()


class Held:
    """Answers as the service does, once told."""

    def __init__(self) -> None:
        self.resume = asyncio.Event()

    def __call__(self, service: HttpService) -> Script:
        async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
            await self.resume.wait()
            async for output in service.response(request):
                yield output

        return script


async def test_connections_close_with_their_next_answer_once_the_server_leaves() -> None:
    """R24: so that clients with open connections go to another master."""
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        connection.send_head("GET", "/livez", {})
        assert "connection" not in (await connection.response()).headers
        edge.server.leave()
        connection.send_head("GET", "/livez", {})
        last = await connection.response()
        assert last.status == 200 and last.headers["connection"] == "close"
        assert await connection.rest() == b""


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    """T12"""
    async with running(keep_alive_s=1) as server:
        connection = await Connection.open("127.0.0.1", server.port)
        connection.send_head("GET", "/livez", {})
        assert (await connection.response()).status == 200
        assert await connection.rest() == b""


@contextlib.asynccontextmanager
async def running(
    *, uds: Path | None = None, root_path: str = "", keep_alive_s: int = 75
) -> AsyncGenerator[HttpServer, None]:
    app = create_app(HttpService(), HttpConfig(), CollectorRegistry())
    server = HttpServer(app, "127.0.0.1", 0, uds=uds, root_path=root_path, keep_alive_s=keep_alive_s)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(deadline_s=1.0)


@pytest.mark.parametrize("path", ["/livez", "/llm/livez", "/llmx/livez"])
async def test_requests_come_with_or_without_the_prefix_of_a_proxy(path: str) -> None:
    async with running(root_path="/llm") as server:
        connection = await Connection.open("127.0.0.1", server.port)
        connection.send_head("GET", path, {})
        assert (await connection.response()).status == (404 if path == "/llmx/livez" else 200)
        connection.leave()


async def test_http_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "pdserve.sock"
    async with running(uds=path) as server:
        assert server.url == f"unix:{path}"
        with pytest.raises(OSError, match=str(path)):
            async with running(uds=path):
                pass
        connection = Connection(*await asyncio.open_unix_connection(path))
        connection.writer.write(request(BODY))
        assert (await connection.response()).status == 200
        connection.leave()
    assert not path.exists()


async def test_a_unix_socket_that_nobody_listens_on_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "pdserve.sock"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
    async with running(uds=path):
        await asyncio.open_unix_connection(path)
    path.write_text("precious")
    with pytest.raises(OSError, match=str(path)):
        async with running(uds=path):
            pass
    assert path.read_text() == "precious"


async def test_stray_bytes_are_said_once_for_each_source(caplog: pytest.LogCaptureFixture) -> None:
    """T16"""
    async with serving(HttpService()) as edge:
        for _ in range(5):
            connection = await edge.client.open()
            connection.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            await connection.rest()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in lines] == ["127.0.0.1 sent a TLS hello to a port without TLS"]


def test_stray_bytes_are_said_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """T16"""
    now_s = 0.0
    stray = StrayBytes(now=lambda: now_s)
    for _ in range(3):
        stray.note("10.0.0.1", b"EHLO x\r\n")
    stray.note("10.0.0.2", b"\x00")
    now_s = INTERVAL_S
    stray.note("10.0.0.1", b"EHLO x\r\n")
    assert [record.getMessage() for record in caplog.records] == [
        r"10.0.0.1 sent no HTTP: b'EHLO x\r\n'",
        r"10.0.0.2 sent no HTTP: b'\x00'",
        r"10.0.0.1 sent no HTTP: b'EHLO x\r\n' (and 2 more like that before)",
    ]
