"""A client of the master's HTTP API that costs little itself: one connection a stream, and no parsing of events."""

import asyncio
import json
import re
import time
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"
STREAM_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
EVENT = b"data: "
OK = b"HTTP/1.1 200"
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ChatLoad:
    """One kind of request. `pace_ms` is told to stand-in workers by the seed."""

    max_tokens: int
    pace_ms: int
    is_streamed: bool
    prompt: str = "Say in one sentence what a lighthouse is for, please."

    def request(self, host: str) -> bytes:
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": self.prompt}],
                "max_tokens": self.max_tokens,
                "seed": self.pace_ms,
                "stream": self.is_streamed,
                "ignore_eos": True,
            }
        ).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return head.encode() + HEAD_END + body


class Connection(asyncio.Protocol):
    """One request at a time. `arrivals_s` are when those parts of the latest answer came that had events."""

    def __init__(self) -> None:
        self.arrivals_s: list[float] = []
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._num_missing: int | None = None  # bytes of an answer that is not streamed; None until its head is there
        self._has_begun = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is a transport without saying so

    def ask(self, request: bytes) -> "asyncio.Future[None]":
        """Done when the whole answer is there. It has a ConnectionError for one that is no 200, or is cut off."""
        assert self._transport is not None, "not connected"
        self._answer.clear()
        self.arrivals_s = []
        self._num_missing = None
        self._has_begun.clear()
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    async def first_event(self) -> None:
        await self._has_begun.wait()

    def close(self) -> None:
        assert self._transport is not None, "not connected"
        self._done.cancel()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if EVENT in data:
            self.arrivals_s.append(time.monotonic())
            self._has_begun.set()
        if self._done.done() or not self._is_complete(data):
            return
        if self._answer.startswith(OK):
            self._done.set_result(None)
        else:
            self._done.set_exception(ConnectionError(self._answer[:500].decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("the master closed the connection"))

    def _is_complete(self, data: bytes) -> bool:
        if self._num_missing is not None:
            self._num_missing -= len(data)
        else:
            head, found, body = self._answer.partition(HEAD_END)
            length = LENGTH.search(head)
            if not found or length is None:
                return data.endswith(STREAM_END)
            self._num_missing = int(length[1]) - len(body)
        return self._num_missing <= 0
