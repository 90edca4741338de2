import asyncio
import errno
import json
from collections.abc import AsyncGenerator, Callable, Coroutine

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from master.output import GenerationOutput, SequenceDelta, Usage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason
from serving import http_protocol
from serving.http_server import HttpServer
from tests.http_client import Client, each_event
from tests.http_service import HttpService, serving

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TIMEOUT_S = 30.0


def new_server(port: int = 0, host: str = "127.0.0.1", service: HttpService | None = None) -> HttpServer:
    app = create_app(service or HttpService(), HttpConfig(), CollectorRegistry())
    return HttpServer(app, host, port)


async def test_the_port_that_was_bound_is_known_after_start() -> None:
    server = new_server()
    await server.start()
    assert server.port > 0 and server.url == f"http://127.0.0.1:{server.port}"
    assert (await Client("127.0.0.1", server.port).get("/livez")).status == 200
    await server.stop(deadline_s=5)
    with pytest.raises(ConnectionRefusedError):
        await Client("127.0.0.1", server.port).get("/livez")
    again = new_server(server.port)
    await again.start()
    assert again.port == server.port
    await again.stop(deadline_s=5)


async def test_a_port_that_is_taken_is_refused_with_the_address() -> None:
    server = new_server()
    await server.start()
    second = new_server(server.port)
    with pytest.raises(OSError, match=f"127.0.0.1:{server.port}") as refused:
        await second.start()
    assert refused.value.errno == errno.EADDRINUSE
    await second.stop(deadline_s=5)
    assert (await Client("127.0.0.1", server.port).get("/livez")).status == 200
    await server.stop(deadline_s=5)


async def test_a_host_that_is_none_is_refused() -> None:
    for host in ("no-such-host.invalid", "192.0.2.1"):
        with pytest.raises(OSError, match=host):
            await new_server(host=host).start()


@pytest.mark.parametrize(
    ("host", "reachable"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("localhost", ["localhost"])]
)
async def test_ipv6_and_names_are_bound(host: str, reachable: list[str]) -> None:
    server = new_server(host=host)
    await server.start()
    for address in reachable:
        assert (await Client(address, server.port).get("/livez")).status == 200
    assert server.url == (f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}")
    await server.stop(deadline_s=5)


class Slow:
    """A first output, and the last when told."""

    def __init__(self) -> None:
        self.resume = asyncio.Event()

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, "a", (5,)),))
        await self.resume.wait()
        yield GenerationOutput((SequenceDelta(0, "b", (5,), finish_reason=FinishReason.STOP),), Usage(1, 2, 0))


LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
Run = Callable[[Coroutine[None, None, None]], None]


@LOOPS
def test_stopping_lets_streams_end_and_takes_no_new_ones(run: Run) -> None:
    run(stop_while_a_stream_runs())


async def stop_while_a_stream_runs() -> None:
    service, script = HttpService(), Slow()
    service.script = script
    async with serving(service) as edge:
        stream = each_event(await edge.client.start_post(CHAT, messages=HI, stream=True))
        await anext(stream)
        stopping = asyncio.create_task(edge.server.stop(deadline_s=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    (await edge.client.open()).leave()
                except ConnectionError:  # refused, or reset while it waited to be accepted
                    break
        assert not stopping.done()
        script.resume.set()
        *events, done = [event async for event in stream]
        assert [json.loads(event)["choices"][0]["delta"] for event in events] == [{"content": "b"}, {}]
        assert done == "[DONE]"
        await asyncio.wait_for(stopping, TIMEOUT_S)


async def test_two_may_stop_it_at_once() -> None:
    service, script = HttpService(), Slow()
    service.script = script
    async with serving(service) as edge:
        stream = each_event(await edge.client.start_post(CHAT, messages=HI, stream=True))
        await anext(stream)
        stopping = [asyncio.create_task(edge.server.stop(deadline_s=TIMEOUT_S)) for _ in range(2)]
        script.resume.set()
        assert [event async for event in stream][-1] == "[DONE]"
        await asyncio.gather(*stopping)


@LOOPS
def test_a_stream_that_outlasts_the_deadline_is_dropped(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run(stop_before_a_stream_ends())
    assert "Exception in ASGI" not in caplog.text


async def stop_before_a_stream_ends() -> None:
    service = HttpService()
    service.script = Slow()
    async with serving(service) as edge:
        connection = await edge.client.start_post(CHAT, messages=HI, stream=True)
        await connection.read_until(b"\n\n")
        await asyncio.wait_for(edge.server.stop(deadline_s=0.01), TIMEOUT_S)
        assert service.num_open == 0
        assert not (await connection.rest()).endswith(b"0\r\n\r\n")


async def test_stopping_twice_or_unstarted_is_harmless() -> None:
    await new_server().stop(deadline_s=5)
    server = new_server()
    await server.start()
    await server.stop(deadline_s=5)
    await server.stop(deadline_s=5)


async def test_a_connection_that_asks_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_TIMEOUT_S", 0.05)
    async with serving(HttpService()) as edge:
        for sent in (b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n"):
            connection = await edge.client.open()
            connection.writer.write(sent)
            assert await connection.rest() == b""
        assert (await edge.client.get("/livez")).status == 200


async def test_headers_without_end_are_refused() -> None:
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        connection.writer.write(b"GET /livez HTTP/1.1\r\nx-long: ")
        await connection.send_until_refused(b"x" * 4096, at_most_bytes=32 * 2**20)
        answer = await connection.rest()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert (await edge.client.get("/livez")).status == 200


async def test_garbage_is_refused() -> None:
    async with serving(HttpService()) as edge:
        for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100, b"GET\r\n\r\n"):
            connection = await edge.client.open()
            connection.writer.write(sent)
            assert (await connection.rest()).startswith(b"HTTP/1.1 400")
        assert (await edge.client.get("/livez")).status == 200


async def test_one_connection_serves_one_request_after_another() -> None:
    async with serving(HttpService()) as edge:
        connection = await edge.client.open()
        for _ in range(3):
            body = json.dumps({"messages": HI}).encode()
            connection.send_head("POST", CHAT, {"content-type": "application/json", "content-length": str(len(body))})
            connection.writer.write(body)
            assert (await connection.response()).status == 200
        connection.leave()
