import dataclasses

import pytest

from protos.served_model import ServedModel

MODEL = ServedModel("llama", "0123456789abcdef", "float32")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "qwen3"},
        {"weights_digest": "0123456789abcdee"},
        {"dtype": "bfloat16"},
        {"quantization": "gptq"},
        {"adapter": "gptq"},
        {"is_batch_invariant": True},
        {"kv_dtype": "bfloat16"},
    ],
)
def test_every_part_is_in_the_identity(change: dict[str, object]) -> None:
    """R7"""
    other = dataclasses.replace(MODEL, **change)  # type: ignore[arg-type]
    assert other.identity != MODEL.identity


def test_an_adapter_is_not_taken_for_a_quantization() -> None:
    assert dataclasses.replace(MODEL, adapter="x").identity != dataclasses.replace(MODEL, quantization="x").identity
