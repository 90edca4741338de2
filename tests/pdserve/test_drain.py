import asyncio
import subprocess
import sys

import pytest

from pdserve.drain import run_drain
from tests.scripted_service import ScriptedService, serving


async def test_the_named_instance_is_drained(capsys: pytest.CaptureFixture[str]) -> None:
    service = ScriptedService()
    async with serving(service) as server:
        assert await asyncio.to_thread(run_drain, str(server.address), "decode-0") == 0
        assert await asyncio.to_thread(run_drain, str(server.address), "decode-00") == 1
    assert service.drained == ["decode-0"]
    shown = capsys.readouterr()
    assert "decode-0" in shown.out
    assert "'decode-00' is not known" in shown.err
    assert await asyncio.to_thread(run_drain, str(server.address), "decode-0") == 2


@pytest.mark.parametrize("arguments", [[], ["--address=localhost:1"], ["decode-0", "decode-1"]])
def test_one_name_is_needed(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pdserve.cli", "drain", *arguments], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
