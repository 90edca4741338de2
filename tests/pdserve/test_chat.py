"""The chat with its lines from a pipe, as a process of its own. The served model answers with its prompt."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from master.errors import ErrorKind, ServingError
from tests.scripted_service import ScriptedService, serving

TIMEOUT_S = 60.0


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@asynccontextmanager
async def chatting(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    code = f"import sys; from pdserve.chat import run_chat; sys.exit(run_chat('{address}'))"
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run(service: ScriptedService, typed: str | bytes) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a chat with these lines typed into it."""
    async with serving(service) as server, chatting(str(server.address)) as process:
        data = typed.encode() if isinstance(typed, str) else typed
        shown, errors = await asyncio.wait_for(process.communicate(data), TIMEOUT_S)
        return process.returncode, shown.decode(), errors.decode()


async def test_each_line_is_answered_with_the_chat_so_far(service: ScriptedService) -> None:
    code, shown, errors = await run(service, "hello\n\nfox\n")
    first = "<user>hello<assistant>"
    assert shown.splitlines() == [first, f"<user>hello<assistant>{first}<user>fox<assistant>"]
    assert (code, errors) == (0, "")


async def test_answers_are_as_long_as_the_flag_says(service: ScriptedService) -> None:
    async with serving(service) as server:
        command = [sys.executable, "-m", "pdserve.cli", "chat", f"--address={server.address}", "--max_tokens=2"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        shown, _ = await asyncio.wait_for(process.communicate(b"hello fox\n"), TIMEOUT_S)
    assert (process.returncode, shown) == (0, b"<u\n")


async def test_commands(service: ScriptedService) -> None:
    _, shown, errors = await run(
        service, "/system be kind\none\n/reset\ntwo\n/system\n/reset\nthree\n/what\n/quit\nfour\n"
    )
    assert shown.splitlines() == [
        "<system>be kind<user>one<assistant>",
        "<system>be kind<user>two<assistant>",
        "<user>three<assistant>",
    ]
    assert "/what is no command" in errors


async def test_a_failed_answer_is_told_and_forgotten(service: ScriptedService) -> None:
    service.refusals.append(ServingError(ErrorKind.INTERNAL, "engine\nerror"))
    code, shown, errors = await run(service, "one\ntwo\n")
    assert shown.splitlines() == ["<user>two<assistant>"]
    assert "engine error" in errors
    assert code == 0


async def test_bytes_that_are_no_text_do_not_end_the_chat(service: ScriptedService) -> None:
    code, shown, _ = await run(service, b"a\xff\nfox\n")
    assert shown.splitlines()[-1].endswith("<user>fox<assistant>")
    assert code == 0


async def test_control_c_stops_the_answer_only(service: ScriptedService) -> None:
    service.resume.clear()
    async with serving(service) as server, chatting(str(server.address)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        seen = await asyncio.wait_for(process.stdout.readexactly(1), TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(service.closed.wait(), TIMEOUT_S)
        seen += await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
        service.resume.set()
        shown, errors = await asyncio.wait_for(process.communicate(b"fox\n"), TIMEOUT_S)
        assert (process.returncode, errors) == (0, b"")
    partial = seen.decode().strip()
    assert partial
    assert shown.decode().splitlines() == [f"<user>hello<assistant>{partial}<user>fox<assistant>"]


async def test_no_master_is_one_line_and_exit_code_2(service: ScriptedService) -> None:
    async with serving(service) as server:
        address = str(server.address)
    async with chatting(address) as process:
        shown, errors = await asyncio.wait_for(process.communicate(b"hello\n"), TIMEOUT_S)
    assert process.returncode == 2
    assert shown == b""
    (line,) = errors.decode().splitlines()
    assert address in line
