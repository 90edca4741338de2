"""R7, M5: whatever differs between two checkpoints shows in their digests."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.engines.torch.weights_digest import KEPT_NAME, weights_digest

WEIGHTS = "model.safetensors"
LONG_AGO_S = 1_000_000_000


def copied(folder: Path, to: Path, **config: object) -> Path:
    """A copy whose config differs in `config`, and whose weights are old."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(KEPT_NAME))
    settings = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(settings | config))
    os.utime(to / WEIGHTS, (LONG_AGO_S, LONG_AGO_S))
    return to


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_one_bit_anywhere_in_the_weights_changes_it(tiny_llama: Path, tmp_path: Path) -> None:
    expected = weights_digest(tiny_llama)
    size = (tiny_llama / WEIGHTS).stat().st_size
    for share in (0.1, 0.31, 0.52, 0.77, 0.99):
        other = copied(tiny_llama, tmp_path / str(share))
        flip(other / WEIGHTS, int(size * share))
        assert weights_digest(other) != expected


def test_another_config_changes_it(tiny_llama: Path, tmp_path: Path) -> None:
    assert weights_digest(copied(tiny_llama, tmp_path / "other", rms_norm_eps=1e-3)) != weights_digest(tiny_llama)


@pytest.mark.parametrize("origin", [{"transformers_version": "5.0.0"}, {"_name_or_path": "/elsewhere"}])
def test_where_a_checkpoint_came_from_does_not_change_it(
    origin: dict[str, object], tiny_llama: Path, tmp_path: Path
) -> None:
    assert weights_digest(copied(tiny_llama, tmp_path / "other", **origin)) == weights_digest(tiny_llama)


def test_weights_that_are_not_safetensors_count_too(tiny_llama: Path, tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        folder = copied(tiny_llama, tmp_path / str(number))
        weights = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        weights["model.norm.weight"] += number
        torch.save(weights, folder / "pytorch_model.bin")
        digests.add(weights_digest(folder))
    assert len(digests) == 2


def test_a_file_that_nobody_changed_is_hashed_once(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    expected = weights_digest(folder)
    flip(folder / WEIGHTS, 5000)
    os.utime(folder / WEIGHTS, (LONG_AGO_S, LONG_AGO_S))  # it looks untouched, so it is not read
    assert weights_digest(folder) == expected
    os.utime(folder / WEIGHTS, (LONG_AGO_S, LONG_AGO_S + 1))
    assert weights_digest(folder) != expected


def test_a_file_that_was_just_written_is_hashed_again(tiny_llama: Path, tmp_path: Path) -> None:
    """Its next change may bear the same time."""
    folder = copied(tiny_llama, tmp_path / "model")
    os.utime(folder / WEIGHTS)
    status = (folder / WEIGHTS).stat()
    expected = weights_digest(folder)
    flip(folder / WEIGHTS, 5000)
    os.utime(folder / WEIGHTS, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights_digest(folder) != expected


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b'{"model.safetensors": 5}'])
def test_what_was_kept_may_be_unreadable(content: bytes, tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / KEPT_NAME).write_bytes(content)
    assert weights_digest(folder) == weights_digest(tiny_llama)


def test_the_folder_may_be_one_that_takes_no_files(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / KEPT_NAME).mkdir()  # nothing can be written under this name, not even by root
    assert weights_digest(folder) == weights_digest(tiny_llama)
    assert not [path for path in folder.iterdir() if path.is_file() and KEPT_NAME in path.name]


def test_what_is_kept_may_be_impossible_to_write_and_to_tidy_up(tiny_llama: Path, tmp_path: Path) -> None:
    """A volume that can only be read refuses both, even where there is nothing to tidy up."""
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / f"{KEPT_NAME}.{os.getpid()}").mkdir()
    assert weights_digest(folder) == weights_digest(tiny_llama)


def test_shards_count_by_their_names(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    expected = weights_digest(folder)
    save_file(load_file(folder / WEIGHTS), folder / "model-2.safetensors")
    assert weights_digest(folder) != expected
