"""The life of a generating request: its errors, and whoever leaves before the end."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from http import HTTPStatus

import openai
import pytest
import uvloop

from master.edge.http.config import HttpConfig
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, SequenceDelta, Usage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason
from tests.http_client import Connection, each_event, events
from tests.http_service import HttpEdge, HttpService, Script, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
TIMEOUT_S = 30.0
Outputs = AsyncGenerator[GenerationOutput, None]


def token(
    text: str = "x", finish_reason: FinishReason | None = None, index: int = 0, usage: Usage | None = None
) -> GenerationOutput:
    return GenerationOutput((SequenceDelta(index, text, (5,), finish_reason=finish_reason),), usage)


class Paused:
    """A script that gives one output and no more until told to; `waiting` can be acquired once for each that waits."""

    def __init__(self) -> None:
        self.resume = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)

    async def __call__(self, request: GenerationRequest) -> Outputs:
        yield token()
        self.waiting.release()
        await self.resume.wait()
        yield token("y", FinishReason.STOP, usage=Usage(1, 2, 0))


async def silence(request: GenerationRequest) -> Outputs:
    await asyncio.Event().wait()
    yield token()


def failing(error: Exception, *outputs: GenerationOutput) -> Script:
    async def script(request: GenerationRequest) -> Outputs:
        for output in outputs:
            yield output
        raise error

    return script


async def all_closed(service: HttpService) -> None:
    await asyncio.wait_for(service.all_closed.wait(), TIMEOUT_S)
    assert service.num_open == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "openai_type", "retry_after"),
    [
        (ErrorKind.INVALID_REQUEST, HTTPStatus.BAD_REQUEST, "invalid_request_error", None),
        (ErrorKind.OVERLOADED, HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error", "1"),
        (ErrorKind.UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable_error", "1"),
        (ErrorKind.DEADLINE_EXCEEDED, HTTPStatus.GATEWAY_TIMEOUT, "timeout_error", None),
        (ErrorKind.INTERNAL, HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", None),
    ],
)
async def test_an_error_before_the_first_output_is_the_answers_status(
    edge: HttpEdge, stream: bool, kind: ErrorKind, status: int, openai_type: str, retry_after: str | None
) -> None:
    edge.service.script = failing(ServingError(kind, "no luck", field="prompt", code="luck"))
    response = await edge.client.post(CHAT, messages=HI, stream=stream)
    assert response.status == status
    assert response.headers.get("retry-after") == retry_after
    assert response.headers["content-type"] == "application/json"
    assert response.error() == {"message": "no luck", "type": openai_type, "param": "prompt", "code": "luck"}
    await all_closed(edge.service)


async def test_an_error_may_say_when_to_come_back(edge: HttpEdge) -> None:
    edge.service.script = failing(ServingError(ErrorKind.OVERLOADED, "full", retry_after_s=17))
    assert (await edge.client.post(CHAT, messages=HI)).headers["retry-after"] == "17"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_error_after_output_is_the_streams_last_event(edge: HttpEdge, path: str) -> None:
    edge.service.script = failing(ServingError(ErrorKind.UNAVAILABLE, "all workers are gone"), token("a"))
    response = await edge.client.post(path, messages=HI, prompt="hi", stream=True)
    assert response.status == 200 and response.is_complete
    first, last = events(response.text)
    assert json.loads(first)["choices"][0]["finish_reason"] is None
    assert json.loads(last)["error"]["message"] == "all workers are gone"
    whole = await edge.client.post(path, messages=HI, prompt="hi")
    assert (whole.status, whole.error()["message"]) == (503, "all workers are gone")


async def test_the_official_client_raises_what_went_wrong(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        await official.completions.create(model="gpt-9", prompt="hi")
    with pytest.raises(openai.BadRequestError) as refused:
        await official.completions.create(model="alias", prompt="hi", temperature=9)
    assert refused.value.param == "temperature"
    edge.service.script = failing(ServingError(ErrorKind.INTERNAL, "a worker made no sense"), token("a"))
    stream = await official.completions.create(model="alias", prompt="hi", stream=True)
    with pytest.raises(openai.APIError, match="a worker made no sense"):
        async for _ in stream:
            pass


async def test_a_bug_is_an_internal_error_that_tells_nothing(edge: HttpEdge, caplog: pytest.LogCaptureFixture) -> None:
    edge.service.script = failing(KeyError("secret"))
    response = await edge.client.post(CHAT, messages=HI)
    assert response.status == 500 and "secret" not in response.text
    assert (await edge.client.post(CHAT, messages=HI, stream=True)).status == 500
    edge.service.script = failing(KeyError("secret"), token())
    *_, last = await edge.client.stream(CHAT, messages=HI)
    assert json.loads(last)["error"]["type"] == "server_error" and "secret" not in last
    assert caplog.text.count("KeyError: 'secret'") == 3


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
async def test_a_choice_that_failed_is_never_answered_with_200(edge: HttpEdge, reason: FinishReason) -> None:
    async def script(request: GenerationRequest) -> Outputs:
        yield token("", reason, usage=Usage(1, 1, 0))

    edge.service.script = script
    for stream in (False, True):
        response = await edge.client.post(CHAT, messages=HI, stream=stream)
        assert response.status == 500 and reason.value in response.error()["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_outputs_that_break_off_are_an_error(edge: HttpEdge, path: str) -> None:
    """Nothing at all, a choice without an end, an end without usage."""
    ends: list[list[GenerationOutput]] = [
        [],
        [token()],
        [token("a", FinishReason.STOP, usage=Usage(1, 1, 0))],
        [token("a", FinishReason.STOP), token("b", FinishReason.STOP, index=1)],
    ]
    for outputs in ends:

        async def script(request: GenerationRequest, outputs: list[GenerationOutput] = outputs) -> Outputs:
            for output in outputs:
                yield output

        edge.service.script = script
        whole = await edge.client.post(path, messages=HI, prompt="hi", n=2)
        assert whole.status == 500 and "broke off" in whole.error()["message"]
        streamed = await edge.client.post(path, messages=HI, prompt="hi", n=2, stream=True)
        if outputs:
            assert "broke off" in json.loads(events(streamed.text)[-1])["error"]["message"]
        else:
            assert streamed.status == 500


async def test_headers_and_the_first_event_come_with_the_first_output(edge: HttpEdge) -> None:
    script = Paused()
    edge.service.script = script
    connection = await edge.client.start_post(CHAT, messages=HI, stream=True)
    stream = each_event(connection)
    assert json.loads(await anext(stream))["choices"][0]["delta"] == {"role": "assistant", "content": "x"}
    assert not script.resume.is_set()  # there was no second output yet
    script.resume.set()
    assert [event async for event in stream][-1] == "[DONE]"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("has_output", [False, True])
async def test_a_client_that_leaves_ends_its_generation(
    edge: HttpEdge, path: str, stream: bool, has_output: bool
) -> None:
    script = Paused()
    edge.service.script = script if has_output else silence
    connection = await edge.client.start_post(path, messages=HI, prompt=["a", "b"], stream=stream)
    if has_output and stream:
        assert (await connection.read_until(b"\r\n")).startswith(b"HTTP/1.1 200")
    elif has_output:
        await asyncio.wait_for(script.waiting.acquire(), TIMEOUT_S)
    else:
        for _ in range(1 if path == CHAT else 2):
            await asyncio.wait_for(edge.service.opened.acquire(), TIMEOUT_S)
    connection.leave()
    await all_closed(edge.service)
    assert not script.resume.is_set()


async def test_the_official_client_may_leave_a_stream(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = Paused()
    stream = await official.completions.create(model="alias", prompt="hi", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await all_closed(edge.service)


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_run_at_once_and_fall_together(edge: HttpEdge, stream: bool) -> None:
    paused = Paused()

    async def script(request: GenerationRequest) -> Outputs:
        if request.id != "r2":
            async for output in paused(request):
                yield output
        for _ in range(2):
            await paused.waiting.acquire()
        raise ServingError(ErrorKind.UNAVAILABLE, "one of three failed")

    edge.service.script = script
    response = await edge.client.post(COMPLETIONS, prompt=["a", "b", "c"], stream=stream)
    assert not paused.resume.is_set()
    assert "one of three failed" in response.text
    assert response.status == (200 if stream else 503)
    await all_closed(edge.service)


def cancelled_if(texts: set[str], service: HttpService) -> Script:
    """Prompts of these texts are cancelled after their first token."""
    words = {tuple(service.tokenizer.encode(text, add_special_tokens=False)) for text in texts}

    async def script(request: GenerationRequest) -> Outputs:
        yield token()
        if request.prompt_ids in words:
            raise ServingError(ErrorKind.CANCELLED, f"{request.id} was cancelled")
        yield token("y", FinishReason.STOP, usage=Usage(1, 2, 0))

    return script


async def test_one_prompt_of_several_is_cancelled_alone(edge: HttpEdge) -> None:
    """R42"""
    edge.service.script = cancelled_if({"b"}, edge.service)
    answer = await edge.client.post(COMPLETIONS, prompt=["a", "b", "c"])
    ends = [(choice["text"], choice["finish_reason"]) for choice in answer.list_of("choices")]
    assert ends == [("xy", "stop"), ("x", "cancelled"), ("xy", "stop")]
    usage = answer.json()["usage"]
    assert isinstance(usage, dict) and (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 5)
    streamed: dict[int, str] = {}
    *chunks, _ = await edge.client.stream(COMPLETIONS, prompt=["a", "b", "c"])
    for chunk in chunks:
        for choice in json.loads(chunk)["choices"]:
            streamed[choice["index"]] = choice["finish_reason"]
    assert streamed == {0: "stop", 1: "cancelled", 2: "stop"}


@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
async def test_an_answer_of_which_nothing_is_left_is_cancelled(edge: HttpEdge, prompts: list[str]) -> None:
    edge.service.script = cancelled_if(set(prompts), edge.service)
    response = await edge.client.post(COMPLETIONS, prompt=prompts)
    assert (response.status, response.error()["type"]) == (499, "cancelled_error")


async def test_events_of_one_output_are_one_chunk_of_bytes(edge: HttpEdge) -> None:
    connection = await edge.client.start_post(CHAT, messages=HI, n=3, max_tokens=2, stream=True)
    await connection.read_until(b"\r\n\r\n")
    chunks = []
    while size := int((await connection.read_until(b"\r\n")).strip(), 16):
        chunks.append((await connection.reader.readexactly(size + 2)).decode().removesuffix("\r\n"))
    assert [len(events(chunk)) for chunk in chunks] == [3, 6, 1]  # each choice's end is an event of its own


async def test_a_request_id_that_can_stand_in_a_header_is_echoed(edge: HttpEdge) -> None:
    body = json.dumps({"messages": HI}).encode()
    for given, echoed in [("my-id/1", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)]:
        headers = {"content-type": "application/json", "x-request-id": given}
        response = await edge.client.send("POST", CHAT, body, headers)
        assert (response.headers["x-request-id"] == given) is echoed
        assert given not in (edge.service.requests[-1].id, response.json()["id"])
    response = await edge.client.post(CHAT, messages=HI)
    assert response.headers["x-request-id"] == response.json()["id"]
    refused = await edge.client.send("POST", CHAT, b"{", {"content-type": "application/json", "x-request-id": "me"})
    assert (refused.status, refused.headers["x-request-id"]) == (400, "me")


class Flood:
    """Outputs without end; `num_outputs` of them were taken."""

    def __init__(self) -> None:
        self.num_outputs = 0

    async def __call__(self, request: GenerationRequest) -> Outputs:
        while True:
            self.num_outputs += 1
            yield token("x" * 10_000)


async def connect_with_small_buffer(edge: HttpEdge) -> Connection:
    taking = socket.socket()
    taking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taking.setblocking(False)
    await asyncio.get_running_loop().sock_connect(taking, (edge.client.host, edge.client.port))
    return Connection(*await asyncio.open_connection(sock=taking, limit=1024))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_reader_that_takes_nothing_is_cut(
    run: Callable[[Coroutine[None, None, None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing piles up. How much a connection buffers, and how it is dropped, is each event loop's own."""
    caplog.set_level(logging.INFO)
    run(cut_a_reader_that_takes_nothing())
    assert "took nothing" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def cut_a_reader_that_takes_nothing() -> None:
    flood = Flood()
    service = HttpService()
    service.script = flood
    async with serving(service, HttpConfig(slow_reader_timeout_s=0.2)) as edge:
        connection = await connect_with_small_buffer(edge)
        body = json.dumps({"messages": HI, "stream": True}).encode()
        connection.send_head("POST", CHAT, {"content-type": "application/json", "content-length": str(len(body))})
        connection.writer.write(body)
        assert (await connection.read_until(b"\r\n")).startswith(b"HTTP/1.1 200")
        await all_closed(service)
        # what the kernel and the server's own buffer hold, and no more
        assert flood.num_outputs * 10_000 < 16 * 2**20
        # the connection is gone with what it still held, or this would wait for the client to take it
        await asyncio.wait_for(edge.server.stop(deadline_s=10 * TIMEOUT_S), TIMEOUT_S)
        connection.leave()
        assert edge.registry.get_sample_value("pdserve_http_requests_total", {"endpoint": CHAT, "status": "499"}) == 1


async def test_a_slow_reader_that_goes_on_gets_everything(edge: HttpEdge) -> None:
    async def script(request: GenerationRequest) -> Outputs:
        for _ in range(200):
            yield token("x" * 10_000)
        yield token("y", FinishReason.STOP, usage=Usage(1, 201, 0))

    edge.service.script = script
    connection = await connect_with_small_buffer(edge)
    body = json.dumps({"messages": HI, "stream": True}).encode()
    connection.send_head("POST", CHAT, {"content-type": "application/json", "content-length": str(len(body))})
    connection.writer.write(body)
    response = await connection.response()
    assert response.is_complete
    *chunks, done = events(response.text)
    assert len(chunks) == 202 and done == "[DONE]"
