import asyncio
import signal
import sys
from dataclasses import replace

import pytest

from master.routing.circuit import CircuitState
from pdserve.status import run_status
from protos.session_messages import Role
from tests.scripted_service import INSTANCE, ScriptedService, serving

TIMEOUT_S = 60.0


async def test_shows_each_instance_with_its_counters(capsys: pytest.CaptureFixture[str]) -> None:
    service = ScriptedService()
    service.views = [
        replace(INSTANCE, name="decode-1", role=Role.DECODE, is_connected=False, state="connecting"),
        replace(INSTANCE, name="decode-0", role=Role.DECODE, state="not used", trouble="it serves [another] model"),
        replace(INSTANCE, name="decode-2", role=Role.DECODE, circuit=CircuitState.OPEN, cut_from=("prefill-0",)),
        INSTANCE,
    ]
    async with serving(service) as server:
        assert await asyncio.to_thread(run_status, str(server.address), False) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "7777" in line]
    assert [row[:3] for row in rows] == [
        ["decode-0", "DECODE", "not used"],
        ["decode-1", "DECODE", "connecting"],
        ["decode-2", "DECODE", "open"],
        ["prefill-0", "PREFILL", "open"],
    ]
    assert rows[3][3:] == ["127.0.0.1:7777", "4", "5", "36/96", "12", "9", "closed", "71", "72", "73", "5.0", "74"]
    assert "ready" in shown
    assert "decode-0: it serves [another] model" in shown
    assert rows[2][9] == "open"
    assert "decode-2 gets no KV from prefill-0" in shown


async def test_says_why_the_cluster_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    service = ScriptedService()
    service.views, service.reason = [], "no [decode] worker"
    async with serving(service) as server:
        assert await asyncio.to_thread(run_status, str(server.address), False) == 0
    assert "not ready: no [decode] worker" in capsys.readouterr().out


@pytest.mark.parametrize("watch", [False, True])
async def test_no_master_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], watch: bool) -> None:
    async with serving(ScriptedService()) as server:
        address = str(server.address)
    assert await asyncio.to_thread(run_status, address, watch) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert address in line


def test_a_wrong_address_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_status("localhost", False) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "host:port" in line


async def test_watch_asks_again_until_interrupted() -> None:
    service = ScriptedService()
    async with serving(service) as server:
        code = f"import sys; from pdserve.status import run_status; sys.exit(run_status('{server.address}', True))"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        try:
            await asyncio.wait_for(service.listed_twice.wait(), TIMEOUT_S)
            process.send_signal(signal.SIGINT)
            shown, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0
    assert b"prefill-0" in shown
