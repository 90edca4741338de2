"""The worker's flags, where they need more than their declaration."""

import pytest

from config.flags import FlagError, parse
from kvcache.transfer.transports.table import TRANSPORTS
from worker.config import WorkerConfig


def parsed(*arguments: str) -> WorkerConfig:
    return parse(WorkerConfig, arguments, prog="worker", description="", environ={}, version="1")


def test_transports_are_those_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = [transport.name for transport in TRANSPORTS]
    assert list(parsed().transports) == names
    assert parsed("--transports=tcp").transports == ("tcp",)
    with pytest.raises(SystemExit):
        parsed("--help")
    assert f"best first, of: {', '.join(names)}" in " ".join(capsys.readouterr().out.split())
    for wrong in ("rdma", "tcp,rdma", ""):
        with pytest.raises(FlagError, match="transports"):
            parsed(f"--transports={wrong}")


def test_faults_are_read_at_start_and_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("step.raise@1+", "transfer.close@3")
    assert parsed(f"--inject_faults={','.join(texts)}").inject_faults == texts
    with pytest.raises(FlagError, match=r"inject_faults: 'step\.fly@1' names no action of delay, raise, nan"):
        parsed("--inject_faults=step.fly@1")
    with pytest.raises(SystemExit):
        parsed("--help")
    assert "inject_faults" not in capsys.readouterr().out


def test_a_step_must_hold_a_token_of_every_stream() -> None:
    """R20"""
    with pytest.raises(FlagError, match=r"max_tokens_per_step.*63.*max_num_seqs 64"):
        WorkerConfig(max_tokens_per_step=63, max_num_seqs=64)
    WorkerConfig(max_tokens_per_step=64, max_num_seqs=64)
