"""A real headless Chromium, driven through its debugging pipe: https://chromedevtools.github.io/devtools-protocol/"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

TIMEOUT_S = 20.0
CHROMIUM = shutil.which("chromium")
END = b"\0"  # of each message
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)


class Page:
    """One tab."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._session: str | None = None
        self._number = 0
        self._events: set[str] = set()
        self.errors: list[str] = []  # what its scripts raised or logged as errors

    async def open(self) -> None:
        target = (await self._call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self._call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            await self._call(f"{domain}.enable")

    async def visit(self, url: str) -> None:
        """Returns when the page and its scripts are there."""
        await self._call("Page.navigate", url=url)
        async with asyncio.timeout(TIMEOUT_S):
            while "Page.loadEventFired" not in self._events:
                self._note(await self._hear())
        self._events.clear()

    async def shape(self, width: int, height: int, *, is_phone: bool = False, is_dark: bool = False) -> None:
        await self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """What the expression yields; a promise is awaited."""
        answer = await self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Returns once the condition holds; it is looked at whenever the page draws."""
        await self.run(
            f"new Promise((done) => {{ const look = () => ({condition}) ? done() : setTimeout(look, 20); look(); }})"
        )

    async def names(self) -> set[tuple[str, str]]:
        """Role and name of all that a screen reader finds."""
        tree = await self._call("Accessibility.getFullAXTree")
        return {
            (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")))
            for node in tree["nodes"]
            if not node["ignored"]
        }

    async def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        shot = await self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def _call(self, method: str, **params: object) -> Mapping[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + END)
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                heard = await self._hear()
                if heard.get("id") == self._number:
                    assert "error" not in heard, heard
                    answer: Mapping[str, Any] = heard["result"]
                    return answer
                self._note(heard)

    async def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads((await self._reader.readuntil(END))[:-1])
        return heard

    def _note(self, event: Mapping[str, Any]) -> None:
        self._events.add(event["method"])
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Page]:
    """The browser reads commands from its descriptor 3 and writes answers to its descriptor 4."""
    assert CHROMIUM is not None
    (commands_out, commands_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f'exec "$@" 3<&{commands_out} 4>&{answers_in}', "-"),
            *(CHROMIUM, *FLAGS, f"--user-data-dir={profile}"),
            pass_fds=(commands_out, answers_in),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        reader, writer = await _streams(answers_out, commands_in)
        try:
            page = Page(reader, writer)
            await page.open()
            yield page
        finally:
            writer.close()
            process.terminate()
            await process.wait()


async def _streams(read: int, write: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb"))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(write, "wb"))
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
