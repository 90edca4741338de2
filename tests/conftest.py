"""What most tests share: checkpoints, and one running cluster."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.checkpoints import Family, make_checkpoint
from tests.cluster import Cluster

# A shell that runs tests in the background has SIGINT ignored in all that it starts; Ctrl-C is tested all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, so that a red run means a changed program; PDSERVE_TEST_RANDOM=1 looks for new ones.
# No deadline: a busy machine is no error.
hypothesis.settings.register_profile(
    "pdserve", derandomize=not os.environ.get("PDSERVE_TEST_RANDOM"), deadline=None, database=None
)
hypothesis.settings.load_profile("pdserve")


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
