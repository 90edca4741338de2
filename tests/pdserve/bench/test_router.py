"""`pdserve bench router` with a few decisions."""

import json

import pytest

from pdserve.bench.command import bench


def test_decisions_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--workers=4,50", "--blocks=1000", "--prompt_tokens=40", "--long_prompt_tokens=900", "--decisions=3")
    assert bench(["router", *few]) == 0
    fleets = json.loads(capsys.readouterr().out)["fleets"]
    assert [fleet["workers"] for fleet in fleets] == [4, 50]
    assert all(fleet[kind] > 0 for fleet in fleets for kind in ("first_us", "decode_us", "long_first_us"))
