"""`pdserve bench router` on a small fleet."""

import json

import pytest

from pdserve.bench.command import bench


def test_decisions_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--workers=2,6", "--prompt_tokens=40", "--cached_blocks=100", "--decisions=3", "--holders=1")
    assert bench(["router", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["workers"], one["prompt_tokens"]) for one in found] == [(2, 40), (6, 40)]
    assert all(one["first_us"] > 0 and one["decode_us"] > 0 for one in found)
