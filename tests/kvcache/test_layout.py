import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvcache.layout import KvLayout

LAYOUT = KvLayout(num_layers=2, block_size=16, num_kv_heads=3, head_dim=8, dtype=torch.bfloat16, model="m")


def test_shape_and_bytes_of_a_block() -> None:
    assert LAYOUT.block_shape == (2, 2, 16, 3, 8)
    assert LAYOUT.block_bytes == 2 * 2 * 16 * 3 * 8 * 2


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(LAYOUT, num_layers=3),
        dataclasses.replace(LAYOUT, block_size=8),
        dataclasses.replace(LAYOUT, num_kv_heads=8, head_dim=3),
        dataclasses.replace(LAYOUT, dtype=torch.float16),
        dataclasses.replace(LAYOUT, model="m2"),
    ],
)
def test_every_field_changes_the_fingerprint(other: KvLayout) -> None:
    assert len(LAYOUT.fingerprint()) == 16
    assert other.fingerprint() != LAYOUT.fingerprint()
    assert dataclasses.replace(LAYOUT).fingerprint() == LAYOUT.fingerprint()


def test_fingerprint_is_the_same_in_another_process() -> None:
    program = (
        "import torch; from kvcache.layout import KvLayout;"
        "print(KvLayout(2, 16, 3, 8, torch.bfloat16, 'm').fingerprint().hex())"
    )
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert answer.stdout.strip() == LAYOUT.fingerprint().hex()


def test_empty_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim"):
        dataclasses.replace(LAYOUT, head_dim=0)
