"""Names are looked up without holding anybody up."""

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from config.daemon_thread import in_daemon_thread
from config.name_service import look_up

LIMIT_S = 30.0


async def test_a_name_becomes_addresses() -> None:
    found = await look_up("localhost", 80, LIMIT_S)
    assert {address.host for address in found} & {"127.0.0.1", "::1"}
    assert found[0].where[:2] == (found[0].host, 80)


async def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(OSError):
        await look_up("no-such-host.invalid", 80, LIMIT_S)


async def test_a_silent_name_service_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: after the time limit, and at once when whoever asked is cancelled."""
    answer = threading.Event()

    def silent(*args: object, **kwargs: object) -> list[object]:
        answer.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(OSError, match=r"db\.example:1: its name was not resolved within 0\.01 s"):
            await look_up("db.example", 1, 0.01)
        asking = asyncio.create_task(look_up("db.example", 1, 10 * LIMIT_S))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    answer.set()


async def test_what_a_thread_raises_is_raised_here() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_daemon_thread(fail, "test")


def test_a_process_ends_without_a_thread_that_blocks_for_ever() -> None:
    """R18, R30"""
    program = """
import asyncio, threading
from config.daemon_thread import in_daemon_thread
async def main():
    blocked = asyncio.create_task(in_daemon_thread(threading.Event().wait, "blocked"))
    await asyncio.wait([blocked], timeout=0.01)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 0
