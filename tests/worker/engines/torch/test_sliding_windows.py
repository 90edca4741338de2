from pathlib import Path

import pytest
import torch

from tests.architectures import EQUAL, MAX_CONTEXT, Architecture, make_model
from tests.worker.engines.torch.reference import prompt
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.loader import load_model
from worker.engines.torch.sliding_windows import NARROW, find_windows, narrowed

WINDOWED = [architecture for architecture in EQUAL if architecture.name.endswith(" sliding")]


def own_logits(loaded: LoadedModel) -> torch.Tensor:
    loaded.model.set_attn_implementation("eager")
    ids = torch.tensor([prompt(NARROW + 4)]) % loaded.vocab_size
    logits: torch.Tensor = loaded.model(input_ids=ids, use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("architecture", WINDOWED, ids=lambda architecture: architecture.name)
def test_a_model_follows_its_windows_when_they_are_narrowed_and_widened(
    architecture: Architecture, tmp_path: Path
) -> None:
    loaded = load_model(make_model(tmp_path, architecture), torch.device("cpu"), "auto")
    windows = find_windows(loaded.config, MAX_CONTEXT)
    assert windows == {"sliding_window": 20}
    wide = own_logits(loaded)
    with narrowed(loaded.model, windows):
        narrow = own_logits(loaded)
    assert torch.equal(narrow[:NARROW], wide[:NARROW])
    assert not torch.equal(narrow[NARROW:], wide[NARROW:])
    assert torch.equal(own_logits(loaded), wide)


def test_windows_that_nothing_reaches_are_left_alone(tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, WINDOWED[0]), torch.device("cpu"), "auto")
    assert find_windows(loaded.config, below=20) == {}
