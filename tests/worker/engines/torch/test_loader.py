import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.checkpoints import Family, make_checkpoint
from tests.worker.engines.torch.engine_rig import Node, hand_off
from tests.worker.engines.torch.reference import Reference, prompt
from worker.engines.torch.loaded_model import LoadedModel, ModelError
from worker.engines.torch.loader import load_model
from worker.engines.torch.self_check import check_model

WEIGHTS = "model.safetensors"


def load(folder: Path) -> LoadedModel:
    return load_model(folder, torch.device("cpu"), "auto")


def copied(folder: Path, to: Path, **config: object) -> Path:
    """A copy whose config differs in `config`."""
    shutil.copytree(folder, to)
    settings = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(settings | config))
    return to


@pytest.mark.parametrize("family", Family)
def test_every_family_loads(family: Family, checkpoint: Callable[[Family], Path]) -> None:
    loaded = load(checkpoint(family))
    assert loaded.served.name == family.value
    assert (loaded.vocab_size, loaded.max_context, loaded.dtype) == (512, 2048, torch.float32)
    num_layers = 2 if family in (Family.LLAMA, Family.MISTRAL) else 3
    assert loaded.layout(16).block_shape == (num_layers, 2, 16, 2, 16)
    assert not loaded.model.training


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_asked_for_dtype_is_that_of_weights_and_kv(dtype: str, tiny_llama: Path) -> None:
    loaded = load_model(tiny_llama, torch.device("cpu"), dtype)
    assert loaded.dtype == getattr(torch, dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {loaded.dtype}
    assert loaded.layout(16).dtype == loaded.dtype


def test_a_cpu_computes_in_float32_whatever_the_checkpoint_has(tiny_llama: Path, tmp_path: Path) -> None:
    assert load(copied(tiny_llama, tmp_path / "half", dtype="bfloat16")).dtype == torch.float32


def test_equal_weights_have_one_name_in_whatever_folder(tiny_llama: Path, tmp_path: Path) -> None:
    """Prefill and decode workers may keep the same model in folders of other names."""
    here, there = load(tiny_llama), load(copied(tiny_llama, tmp_path / "elsewhere"))
    assert here.served == there.served
    assert here.layout(16).fingerprint() == there.layout(16).fingerprint()


def test_a_hand_off_between_folders_of_other_names(tiny_llama: Path, tmp_path: Path) -> None:
    other = copied(tiny_llama, tmp_path / "elsewhere")
    with Node(tiny_llama) as prefill, Node(other) as decode:
        assert hand_off(prefill, decode, prompt(20))[1].token_ids == prefill.run(prompt(20)).token_ids


def test_other_weights_have_another_name(tiny_llama: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", Family.LLAMA, 1)
    assert load(other).served != load(tiny_llama).served


def test_tied_embeddings_are_not_missing(tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(
        "qwen3",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load(tmp_path).vocab_size == 64


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors", "fp8", "hqq", "modelopt"])
def test_a_quantised_checkpoint_says_what_it_needs(method: str, tiny_llama: Path, tmp_path: Path) -> None:
    """M4"""
    settings = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    with pytest.raises(ModelError, match=r"require|is not available|not know") as refusal:
        load(copied(tiny_llama, tmp_path / "model", quantization_config=settings))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("model_type", ["bloom", "mamba", "rwkv"])
def test_a_config_without_a_context_length(model_type: str, tmp_path: Path) -> None:
    """M4"""
    transformers.AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no context length|no attention heads"):
        load(tmp_path)


def test_the_text_model_of_a_checkpoint_that_has_others(tmp_path: Path) -> None:
    """M4"""
    text = dict(model_type="llama", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8)
    config = transformers.LlavaConfig(
        text_config=text | {"vocab_size": 64, "max_position_embeddings": 128},
        vision_config=vision | {"model_type": "clip_vision_model", "patch_size": 4},
        image_token_index=5,
    )
    whole = transformers.LlavaForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    check_model(loaded, loaded.max_context)
    assert (loaded.served.name, loaded.max_context, loaded.vocab_size) == ("llama", 128, 64)
    for name, weight in loaded.model.named_parameters():
        found = [value for key, value in whole.named_parameters() if "vision" not in key and key.endswith(name[-30:])]
        assert any(torch.equal(weight, value) for value in found), name


def test_a_text_model_that_does_not_load_alone(tmp_path: Path) -> None:
    """M4"""
    transformers.Qwen2VLConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="Qwen2VLTextConfig"):
        load(tmp_path)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="no such folder"):
        load(tmp_path / "file")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    "config", ["{nope", "", "[]", "{}", '{"model_type": "nonesuch"}', '{"model_type": "t5"}', '{"model_type": "vit"}']
)
def test_a_config_of_no_language_model(config: str, tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match=str(folder)):
        load(folder)


@pytest.mark.parametrize("num_bytes", [0, 5, 5000])
def test_weights_cut_short(num_bytes: int, tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / WEIGHTS).write_bytes((tiny_llama / WEIGHTS).read_bytes()[:num_bytes])
    with pytest.raises(ModelError):
        load(folder)


def test_no_weights(tiny_llama: Path, tmp_path: Path) -> None:
    folder = copied(tiny_llama, tmp_path / "model")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError):
        load(folder)


def test_weights_of_another_shape(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        load(copied(tiny_llama, tmp_path / "model", hidden_size=32))


def test_weights_that_lack_a_layer(tiny_llama: Path, tmp_path: Path) -> None:
    """Transformers would make them up, and other ones on every worker."""
    with pytest.raises(ModelError, match=r"lacks 9 weights, model\.layers\.2\."):
        load(copied(tiny_llama, tmp_path / "model", num_hidden_layers=3))


@pytest.mark.parametrize("chunk", [7, 512])
def test_a_sliding_window_is_that_of_transformers(
    chunk: int, checkpoint: Callable[[Family], Path], reference: Callable[[Path], Reference], tmp_path: Path
) -> None:
    full = checkpoint(Family.MISTRAL)
    folder = copied(full, tmp_path / "window", sliding_window=20)
    expected = {length: reference(folder).greedy(prompt(length), 12) for length in (5, 20, 21, 60)}
    assert expected[60] != reference(full).greedy(prompt(60), 12)
    with Node(folder, max_tokens_per_step=chunk) as node, Node(folder) as decode:
        for length, token_ids in expected.items():
            assert node.run(prompt(length)).token_ids[0][:12] == token_ids
            assert hand_off(node, decode, prompt(length))[1].token_ids[0][:12] == token_ids
