"""M6: the context is derived as vLLM derives it, by master and worker alike."""

import json
from pathlib import Path

import pytest

from master.model_info import DEFAULT_CONTEXT, model_context
from serving.model_context import Fields, derived_context

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 8192),
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 65536),
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 65536),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope", "factor": 32.0}}, 131072),
        ({"max_position_embeddings": 2048, "rope_scaling": None}, 2048),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 2048),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 1000,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 3.0},
                    "sliding_attention": {"rope_type": "linear", "factor": 3.0},
                },
            },
            3000,
        ),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": 2048, "text_config": {"hidden_size": 8}}, 2048),
        ({"hidden_size": 8}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": "long"}, None),
        ({"max_position_embeddings": 10, "rope_scaling": {"type": "linear", "factor": "big"}}, 10),
    ],
)
def test_the_context_of_a_config(config: Fields, expected: int | None, tmp_path: Path) -> None:
    assert derived_context(config) == expected
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_context(tmp_path) == (expected or DEFAULT_CONTEXT)


def test_a_folder_with_only_a_tokenizer(tmp_path: Path) -> None:
    assert model_context(tmp_path) == DEFAULT_CONTEXT


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_malformed_config_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        model_context(tmp_path)
