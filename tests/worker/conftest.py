"""Checkpoints of every family, what plain transformers makes of them, and a shared engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoints import Family, make_checkpoint
from tests.worker.engines.torch.engine_rig import BLOCK_SIZE, Node
from tests.worker.engines.torch.reference import Reference


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """More only get in each other's way with models this small."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path, tiny_qwen3: Path
) -> Callable[[Family], Path]:
    made = {Family.LLAMA: tiny_llama, Family.QWEN3: tiny_qwen3}

    def make(family: Family) -> Path:
        if family not in made:
            made[family] = make_checkpoint(tmp_path_factory.mktemp("models") / family.value, family, 0)
        return made[family]

    return make


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Reference]:
    made: dict[Path, Reference] = {}

    def get(folder: Path) -> Reference:
        if folder not in made:
            made[folder] = Reference(folder)
        return made[folder]

    return get


@pytest.fixture
def node(tiny_llama: Path) -> Iterator[Node]:
    """Cuts prompts in chunks of one block."""
    with Node(tiny_llama, max_tokens_per_step=BLOCK_SIZE) as running:
        yield running


@pytest.fixture
def decode(tiny_llama: Path) -> Iterator[Node]:
    with Node(tiny_llama) as running:
        yield running


@pytest.fixture(scope="module")
def llama(tiny_llama: Path) -> Iterator[Node]:
    """An engine that tests of a module share, and leave without work."""
    node = Node(tiny_llama)
    with node:
        yield node
