"""`pdserve bench master` with little load: whole figures, and every stream and chat was answered."""

import json
from pathlib import Path

import pytest

from pdserve.bench.command import bench

FEW = ("--streams=3", "--tokens=4", "--rounds=1", "--chats=8", "--chat_clients=2", "--open_streams=4", "--pace_ms=1")


def test_a_master_is_measured(tiny_llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(["master", f"--tokenizer_path={tiny_llama}", *FEW]) == 0
    report = json.loads(capfd.readouterr().out)
    assert [report[kind]["streams"] for kind in ("saturated", "paced", "paced_few")] == [3, 3, 2]
    assert all(report[kind]["us_per_token"] > 0 for kind in ("saturated", "paced", "paced_few"))
    assert all(0 < report[kind]["ttft_p50_ms"] <= report[kind]["ttft_p99_ms"] for kind in ("saturated", "paced"))
    assert report["chats_per_s"] > 0
    assert report["us_per_chat"] > 0
