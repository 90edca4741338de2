"""Which engine a worker's flag chooses."""

import subprocess
import sys

import pytest

from config.flags import FlagError
from worker.config import Engine, WorkerConfig
from worker.engines.table import ASSEMBLIES, chosen


def test_every_value_of_the_flag_names_an_engine() -> None:
    assert set(ASSEMBLIES) == set(Engine)
    for engine in Engine:
        assert callable(chosen(engine))


def test_the_flag_is_torch_by_default() -> None:
    assert WorkerConfig().engine is Engine.TORCH


def test_an_engine_that_is_not_installed_is_refused_by_the_name_of_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ASSEMBLIES, Engine.TORCH, "worker.engines.not_installed")
    with pytest.raises(FlagError, match=r"^--engine: 'torch' cannot be imported here: No module named"):
        chosen(Engine.TORCH)


def test_no_engine_is_imported_before_it_is_chosen() -> None:
    """Another process, for this one has it loaded."""
    program = "import sys, worker.main, worker.worker, worker.engines.table; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "False"
