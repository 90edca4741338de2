"""A small HTTP/1.1 client that hides nothing: what is sent and when the connection ends is up to the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httptools

TIMEOUT_S = 30.0
JSON = {"content-type": "application/json"}


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> dict[str, object]:
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded

    def list_of(self, name: str) -> list[dict[str, Any]]:
        """A member that is a list of objects."""
        items = self.json()[name]
        assert isinstance(items, list)
        return items

    def error(self) -> dict[str, str]:
        """OpenAI's error object, in which nothing is missing."""
        error = self.json()["error"]
        assert isinstance(error, dict) and set(error) == {"message", "type", "param", "code"}, error
        return error


class _Parser:
    """Callbacks for httptools."""

    def __init__(self) -> None:
        self.response = Response()
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self.response.status = self._parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.response.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.response.body += body

    def on_message_complete(self) -> None:
        self.response.is_complete = True


class Connection:
    """One request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        return cls(*await asyncio.wait_for(asyncio.open_connection(host, port), TIMEOUT_S))

    def send_head(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test", *(f"{name}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    async def send_chunks(self, chunks: Iterable[bytes]) -> None:
        """A chunked body, until the server closes."""
        try:
            for chunk in chunks:
                self.writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await asyncio.wait_for(self.writer.drain(), TIMEOUT_S)
            self.writer.write(b"0\r\n\r\n")
        except ConnectionError:
            pass  # the answer tells why

    async def read_until(self, text: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(text), TIMEOUT_S)

    async def response(self) -> Response:
        parser = _Parser()
        while not parser.response.is_complete:
            data = await asyncio.wait_for(self.reader.read(65536), TIMEOUT_S)
            if not data:
                return parser.response  # cut off before its end
            parser.feed(data)
        return parser.response

    async def rest(self) -> bytes:
        """Whatever comes until the server closes."""
        received = b""
        try:
            while data := await asyncio.wait_for(self.reader.read(65536), TIMEOUT_S):
                received += data
        except ConnectionError:
            pass
        return received

    async def send_until_refused(self, part: bytes, at_most_bytes: int) -> None:
        """Sends it over and over until the server closes, which it has to do in time."""
        num_bytes = 0
        async with asyncio.timeout(TIMEOUT_S):
            try:
                while not self.reader.at_eof():
                    assert num_bytes < at_most_bytes, "the server takes all there is"
                    self.writer.write(part)
                    num_bytes += len(part)
                    await self.writer.drain()
                    await asyncio.sleep(0)
            except ConnectionError:
                pass

    def leave(self) -> None:
        """At once, as a process that is killed."""
        self.writer.transport.abort()


class Client:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    async def open(self) -> Connection:
        return await Connection.open(self.host, self.port)

    async def start_post(self, path: str, **body: object) -> Connection:
        """A POST whose answer is still to be read."""
        connection = await self.open()
        content = json.dumps(body).encode()
        connection.send_head("POST", path, {**JSON, "content-length": str(len(content))})
        connection.writer.write(content)
        return connection

    async def send(self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] = JSON) -> Response:
        connection = await self.open()
        try:
            connection.send_head(method, path, {**headers, "content-length": str(len(content))})
            connection.writer.write(content)
            return await connection.response()
        finally:
            connection.leave()

    async def get(self, path: str) -> Response:
        return await self.send("GET", path, headers={})

    async def post(self, path: str, **body: object) -> Response:
        return await self.send("POST", path, json.dumps(body).encode())

    async def stream(self, path: str, **body: object) -> list[str]:
        """The data of all events, [DONE] among them."""
        response = await self.post(path, stream=True, **body)
        assert response.status == 200 and response.is_complete, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.text)


def events(text: str) -> list[str]:
    found = text.split("\n\n")
    assert found.pop() == ""
    assert all(event.startswith("data: ") for event in found)
    return [event.removeprefix("data: ") for event in found]


async def each_event(connection: Connection) -> AsyncIterator[str]:
    """The data of each event as it comes, from a chunked body; ends with it."""
    await connection.read_until(b"\r\n\r\n")
    while True:
        size = int((await connection.read_until(b"\r\n")).strip(), 16)
        chunk = (await asyncio.wait_for(connection.reader.readexactly(size + 2), TIMEOUT_S)).removesuffix(b"\r\n")
        if not size:
            return
        for event in events(chunk.decode()):
            yield event
