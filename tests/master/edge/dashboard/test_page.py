"""The page in a real browser."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from serving.http_server import HttpServer
from serving.keys import Keys
from tests.browser import CHROMIUM, Page, chromium
from tests.http_service import HttpService

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

FOLDER = os.environ.get("PDSERVE_SCREENSHOTS")
LIVE = "document.body.dataset.state === 'live'"
FIND = """document.getElementById('wanted').value = 'name-7';
document.querySelector('#search button').click()"""


@asynccontextmanager
async def master(service: HttpService, port: int = 0, keys: Keys | None = None) -> AsyncIterator[HttpServer]:
    app = create_app(service, HttpConfig(), CollectorRegistry(), keys=keys)
    server = HttpServer(app, "127.0.0.1", port)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(deadline_s=0)


async def shoot(page: Page, name: str) -> None:
    """Keeps a picture where PDSERVE_SCREENSHOTS says."""
    png = await page.screenshot()
    if FOLDER:
        await asyncio.to_thread((Path(FOLDER) / f"{name}.png").write_bytes, png)


async def test_the_page_shows_fifty_instances_finds_a_request_drains_and_outlives_a_restart(
    service: HttpService,
) -> None:
    async with chromium() as page:
        async with master(service) as server:
            port = server.port
            await page.shape(1400, 900)
            await page.visit(f"{server.url}/dashboard")
            await page.until(LIVE)
            assert await page.run("document.querySelectorAll('#instances tbody tr').length") == 50
            assert await page.run("document.querySelectorAll('#instances b').length") == 0  # names are no markup
            assert await page.run("document.getElementById('readiness').textContent") == "Ready"
            await check_names(page)
            await page.run(FIND)
            await page.until("document.querySelectorAll('.bars li').length === 10")
            await shoot(page, "light")
            await check_other_shapes(page)
            await check_drain(page, service)
        await page.until("document.body.dataset.state === 'away'")
        assert "No answer" in await page.run("document.getElementById('readiness').textContent")
        page.errors.clear()  # the requests that nobody answered
        service.views[0] = replace(service.views[0], state="draining")
        async with master(service, port):
            await page.until(LIVE)
            await page.until("document.querySelector('#instances tbody .state').textContent === 'draining'")
            assert page.errors == []


async def check_names(page: Page) -> None:
    """Of what a screen reader finds."""
    names = await page.names()
    assert {("button", "Drain decode-0"), ("button", "Find"), ("heading", "Cluster"), ("status", "")} <= names
    assert {("rowheader", "decode-0"), ("columnheader", "State")} <= names
    assert any(role == "textbox" and name.startswith("Id, or") for role, name in names)


async def check_other_shapes(page: Page) -> None:
    """A phone's screen scrolls one way only; tables scroll by themselves."""
    for is_dark in (False, True):
        await page.shape(360, 740, is_phone=True, is_dark=is_dark)
        assert await page.run("document.documentElement.scrollWidth") <= 360
        await shoot(page, f"phone-{'dark' if is_dark else 'light'}")
    await page.shape(1400, 900, is_dark=True)
    assert await page.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    await shoot(page, "dark")


async def check_drain(page: Page, service: HttpService) -> None:
    """Only a confirmed drain is one."""
    for answer in ("no", "yes"):
        await page.run("document.querySelector('[aria-label=\"Drain decode-0\"]').click()")
        await page.until("document.getElementById('confirm').open")
        assert "Drain decode-0?" in await page.run("document.getElementById('confirm-text').textContent")
        await page.run(f"document.querySelector('#confirm [value={answer}]').click()")
        await page.until("!document.getElementById('confirm').open")
    await page.until("document.getElementById('found').textContent === 'Told decode-0 to drain.'")
    assert service.drained == ["decode-0"]


async def test_behind_a_key_the_browsers_password_is_enough(service: HttpService) -> None:
    async with chromium() as page, master(service, keys=Keys(["secret"])) as server:
        await page.visit(f"http://me:secret@127.0.0.1:{server.port}/dashboard")
        await page.until(LIVE)
        assert await page.run("document.querySelectorAll('#instances tbody tr').length") == 50
