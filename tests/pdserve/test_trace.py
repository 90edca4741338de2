import asyncio

import pytest

from client.sync_client import Client
from pdserve.trace import run_trace
from tests.master.edge.dashboard.conftest import record
from tests.scripted_service import ScriptedService, serving


async def test_a_requests_attempts_are_shown_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    service = ScriptedService()
    service.history.log.remember(record(7))
    async with serving(service) as server:
        address = str(server.address)
        assert await asyncio.to_thread(run_trace, address, "chatcmpl-req-7") == 0
        assert await asyncio.to_thread(run_trace, address, "req-8") == 1
        with Client(address) as client:
            (story,) = await asyncio.to_thread(client.trace, "name-7")
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    attempts = [line for line in lines if "attempt " in line]
    assert len(attempts) == 2 and "prefill-0: lost" in attempts[0] and "prefill-1" in attempts[1]
    assert any("transfer" in line and "decode-0" in line and "█" in line for line in lines)
    assert "finished, stop" in shown.out and "'req-8'" in shown.err
    assert (story.id, story.timeline.attempts, story.spans[0].name) == ("req-7", 2, "admit")
    assert await asyncio.to_thread(run_trace, address, "req-7") == 2
