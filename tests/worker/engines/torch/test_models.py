"""M1, M2, M3: a model is served as transformers computes it, or it is refused; never anything else."""

from pathlib import Path

import pytest
import torch

from config.flags import FlagError
from master.model_info import model_context
from tests.architectures import (
    DYNAMIC_ROPE,
    EQUAL,
    LONG_ROPE,
    MAX_CONTEXT,
    REFUSED,
    VOCABULARY_SIZE,
    Architecture,
    make_model,
)
from tests.worker.engines.torch.engine_rig import Node, hand_off
from tests.worker.engines.torch.reference import Reference, prompt
from worker.engines.torch.loaded_model import ModelError
from worker.engines.torch.loader import load_model
from worker.engines.torch.self_check import check_model

NUM_TOKENS = 8


def ids(length: int) -> tuple[int, ...]:
    return tuple(3 + token_id % (VOCABULARY_SIZE - 3) for token_id in prompt(length))


@pytest.mark.parametrize("architecture", EQUAL, ids=lambda architecture: architecture.name)
def test_what_is_served_is_what_transformers_computes(architecture: Architecture, tmp_path: Path) -> None:
    """Prompts in chunks, beside each other; the longer one goes beyond any window."""
    folder = make_model(tmp_path, architecture)
    reference = Reference(folder)
    with Node(folder, max_tokens_per_step=17) as node:
        starts = [node.start(ids(length)) for length in (50, 9)]
        for start in starts:
            token_ids = node.master.result(start).token_ids[0]
            assert token_ids[:NUM_TOKENS] == reference.greedy(start.prompt_ids, NUM_TOKENS)


@pytest.mark.parametrize(("architecture", "reason"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_what_would_answer_with_other_text_is_refused(architecture: Architecture, reason: str, tmp_path: Path) -> None:
    with pytest.raises(FlagError, match=reason) as refusal:
        Node(make_model(tmp_path, architecture))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("architecture", "max_context"), [(LONG_ROPE, 64), (DYNAMIC_ROPE, MAX_CONTEXT)], ids=["longrope", "dynamic"]
)
def test_a_stretched_model_is_served_within_its_original_context(
    architecture: Architecture, max_context: int, tmp_path: Path
) -> None:
    """M2"""
    folder = make_model(tmp_path, architecture)
    reference = Reference(folder)
    with Node(folder, max_context=max_context) as node, Node(folder, max_context=max_context) as decode:
        for length in (5, max_context - 20):
            expected = reference.greedy(ids(length), NUM_TOKENS)
            assert hand_off(node, decode, ids(length))[1].token_ids[0][:NUM_TOKENS] == expected


def test_master_and_worker_derive_one_context(tmp_path: Path) -> None:
    """M6"""
    for architecture in EQUAL:
        folder = make_model(tmp_path / architecture.name, architecture)
        assert model_context(folder) == load_model(folder, torch.device("cpu"), "auto").max_context, architecture.name


def test_no_longer_context_than_the_model_is_made_for(tiny_llama: Path) -> None:
    """M6"""
    with pytest.raises(FlagError, match="max_context: 2049: the model is made for 2048 tokens"):
        Node(tiny_llama, max_context=2049)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_not_taken_for_a_difference(dtype: str, tmp_path: Path) -> None:
    for architecture in EQUAL[:12]:
        loaded = load_model(make_model(tmp_path / architecture.name, architecture), torch.device("cpu"), dtype)
        check_model(loaded, MAX_CONTEXT)


def test_a_model_that_yields_no_numbers_is_refused(tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, EQUAL[0]), torch.device("cpu"), "auto")
    with torch.no_grad():
        loaded.model.get_output_embeddings().weight[5] = torch.nan
    with pytest.raises(ModelError, match="no numbers"):
        check_model(loaded, MAX_CONTEXT)
