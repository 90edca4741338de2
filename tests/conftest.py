"""What most tests share: checkpoints, and one running cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import Family, make_checkpoint
from tests.cluster import Cluster


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", Family.LLAMA, 0)


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "tiny-qwen3", Family.QWEN3, 0)


@pytest.fixture(scope="session")
def cluster(tiny_llama: Path) -> Iterator[Cluster]:
    """One PREFILL and one DECODE worker with the tiny Llama; tests must leave it as they found it."""
    with Cluster(tiny_llama, ["PREFILL", "DECODE"]) as running:
        yield running
