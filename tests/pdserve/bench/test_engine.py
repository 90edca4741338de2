"""`pdserve bench engine` on a tiny model: whole figures, and the engine it measured is gone."""

import json
import threading
from pathlib import Path

import pytest

from config.flags import FlagError
from pdserve.bench.command import bench


def test_an_engine_is_measured(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        f"--model={tiny_llama}",
        "--num_threads=1",
        "--num_blocks=64",
        "--max_num_seqs=8",
        "--sampling=temperature=0.8",
    )
    assert bench(["engine", *flags, "--sequences=1,3", "--prompt_tokens=20", "--steps=4", "--prefill_tokens=50"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["prefill_tokens_per_s"] == pytest.approx(50 / report["first_token_s"])
    assert [found["sequences"] for found in report["decodes"]] == [1, 3]
    for found in report["decodes"]:
        assert found["tokens_per_s"] == pytest.approx(found["sequences"] * 1e3 / found["step_ms"])
    assert not any(thread.name.startswith(("engine", "transfer")) for thread in threading.enumerate())


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(
        FlagError, match="nothing called 'engin' can be measured; there are serve, engine, master, router"
    ):
        bench(["engin"])


@pytest.mark.parametrize("assignment", ["temperatur=1", "temperature", "temperature=hot", "grammar=1"])
def test_what_is_sampled_by_is_checked(assignment: str) -> None:
    with pytest.raises(FlagError, match=f"--sampling: '{assignment}' does not set a number"):
        bench(["engine", f"--sampling={assignment}"])
