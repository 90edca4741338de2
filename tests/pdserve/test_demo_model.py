import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from pdserve.demo_model import (
    INSTALL_COMMAND,
    MODEL_NAME,
    PACKAGE,
    STAMP,
    DemoModelMissing,
    default_cache_dir,
    ensure_demo_model,
)
from pdserve.gguf_reader import GgufError, GgufFile
from tests.pdserve.tiny_gguf import HEAD_DIM, NUM_HEADS, WIDTH, stored_f32, tiny_metadata, tiny_weights, write_gguf
from worker.engines.torch.weights_digest import KEPT_NAME, weights_digest

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def start_command(cache: Path) -> "subprocess.Popen[str]":
    environment = os.environ | {"PDSERVE_CACHE": str(cache)}
    command = [sys.executable, "-m", "pdserve.demo_model"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_folder_holds_the_gguf_values_exactly(tiny_package: Path, tmp_path: Path) -> None:
    folder = ensure_demo_model(tmp_path / "cache", lambda line: None)
    assert sorted(file.name for file in folder.iterdir()) == sorted([*FILES, STAMP])
    source, written = tiny_weights(), load_file(folder / "model.safetensors")
    for name, original in {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    }.items():
        np.testing.assert_array_equal(written[f"{name}.weight"], source[f"{original}.weight"])
    # rows 2i and 2i+1 of a head in the GGUF are the pair that RoPE rotates: rows i and i + head_dim / 2 here
    queries = source["blk.0.attn_q.weight"].reshape(NUM_HEADS, HEAD_DIM, WIDTH)
    expected = np.concatenate([queries[:, 0::2], queries[:, 1::2]], axis=1).reshape(WIDTH, WIDTH)
    np.testing.assert_array_equal(written["model.layers.0.self_attn.q_proj.weight"], expected)

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == 2


def test_a_complete_folder_is_used_as_it_is(tiny_package: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = ensure_demo_model(tmp_path, lines.append)
    assert lines
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    (tiny_package / "tiny.gguf").unlink()
    assert ensure_demo_model(tmp_path, lambda line: pytest.fail(line)) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_what_a_worker_notes_beside_the_weights_is_no_damage(tiny_package: Path, tmp_path: Path) -> None:
    """Else every other start would convert again, and take the folder from under the workers that serve it."""
    folder = ensure_demo_model(tmp_path, lambda line: None)
    for file in folder.iterdir():
        os.utime(file, (0, 0))  # digests of files that may still change are not kept
    weights_digest(folder)
    assert (folder / KEPT_NAME).is_file()
    assert ensure_demo_model(tmp_path, lambda line: pytest.fail(line)) == folder


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def change_a_byte(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace("10000.0", "10001.0"))


def age(folder: Path) -> None:
    stamp = json.loads((folder / STAMP).read_text())
    (folder / STAMP).write_text(json.dumps(stamp | {"converter": 0}))


@pytest.mark.parametrize(
    "damage",
    [
        cut_weights,
        change_a_byte,
        age,
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / STAMP).unlink(),
        lambda folder: (folder / STAMP).write_text("[1"),
        lambda folder: (folder / "pytorch_model.bin").touch(),
        lambda folder: (
            (folder.parent / f".{MODEL_NAME}-killed" / "fresh").mkdir(parents=True) or (folder / STAMP).unlink()
        ),
    ],
    ids=["cut", "changed", "older converter", "file gone", "no stamp", "bad stamp", "foreign file", "killed converter"],
)
def test_a_damaged_folder_is_built_again(tiny_package: Path, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    cache = tmp_path / "cache"
    folder = ensure_demo_model(cache, lambda line: None)
    intact = {file.name: file.read_bytes() for file in folder.iterdir()}
    damage(folder)
    assert ensure_demo_model(cache, lambda line: None) == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == intact
    assert sorted(entry.name for entry in cache.iterdir()) == [MODEL_NAME, f"{MODEL_NAME}.lock"]


def test_a_missing_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DemoModelMissing) as raised:
        ensure_demo_model(tmp_path / "cache", lambda line: None)
    assert INSTALL_COMMAND in str(raised.value)
    assert not (tmp_path / "cache").exists()


def test_a_package_without_a_model_is_as_good_as_missing(package: Path, tmp_path: Path) -> None:
    with pytest.raises(DemoModelMissing):
        ensure_demo_model(tmp_path / "cache", lambda line: None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, INSTALL_COMMAND), (b"", "the file is empty"), (b"GGML" * 9, "not a GGUF file")],
    ids=["no file", "empty file", "other format"],
)
def test_the_command_tells_in_one_line_what_is_wrong(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (package / "tiny.gguf").write_bytes(content)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    process = start_command(tmp_path / "cache")
    output, told = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert told.splitlines()[-1].startswith("pdserve-demo-model: ") and told.endswith(f"{problem}\n")
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.architecture", "mamba"), ("tokenizer.ggml.pre", "llama-bpe"), ("llama.block_count", "one")],
)
def test_another_kind_of_gguf_is_refused_and_leaves_nothing(
    package: Path, tmp_path: Path, key: str, value: str
) -> None:
    weights = {name: stored_f32(values) for name, values in tiny_weights().items()}
    write_gguf(package / "tiny.gguf", tiny_metadata() | {key: value}, weights)
    with pytest.raises(GgufError, match=key):
        ensure_demo_model(tmp_path / "cache", lambda line: None)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [f"{MODEL_NAME}.lock"]


def test_the_cache_folder_is_pdserve_cache_or_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDSERVE_CACHE", "/var/cache/pdserve")
    assert default_cache_dir() == Path("/var/cache/pdserve")
    monkeypatch.delenv("PDSERVE_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/pdserve")


needs_demo_model = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"the demo model is not installed: {INSTALL_COMMAND}"
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """The real model's folder as two processes started together made it, and what the two told on the way."""
    cache = tmp_path_factory.mktemp("cache")
    processes = [start_command(cache), start_command(cache)]
    told = []
    for process in processes:
        output, progress = process.communicate(timeout=240)
        assert process.returncode == 0, progress
        assert output == f"{cache / MODEL_NAME}\n"
        told.append(progress)
    yield cache / MODEL_NAME, told
    for file in (cache / MODEL_NAME).iterdir():
        file.unlink()


@needs_demo_model
def test_two_starters_convert_once(converted: tuple[Path, list[str]]) -> None:
    folder, told = converted
    assert sum("converting the demo model SmolLM2-135M-Instruct once" in progress for progress in told) == 1
    assert sorted(entry.name for entry in folder.parent.iterdir()) == [MODEL_NAME, f"{MODEL_NAME}.lock"]


@needs_demo_model
def test_the_second_call_imports_no_torch(converted: tuple[Path, list[str]]) -> None:
    program = (
        "import sys; from pathlib import Path; from pdserve.demo_model import ensure_demo_model\n"
        "print(ensure_demo_model(Path(sys.argv[1]), sys.exit))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, str(converted[0].parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{converted[0]}\n", "")


@needs_demo_model
def test_the_tokenizer_is_the_one_of_the_gguf(converted: tuple[Path, list[str]]) -> None:
    folder, _ = converted
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    with GgufFile(next(Path(spec.origin).parent.glob("*.gguf"))) as gguf:
        tokens = gguf.metadata["tokenizer.ggml.tokens"]
        template = gguf.metadata["tokenizer.chat_template"]
    assert isinstance(tokens, list)
    assert [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())] == tokens
    assert tokenizer.encode("<|im_start|>in 2024<|im_end|>").tokens == [
        "<|im_start|>", "in", "Ġ", "2", "0", "2", "4", "<|im_end|>",
    ]  # fmt: skip
    # the model's vocabulary has no token for a few control characters
    text = "".join(map(chr, range(0x20, 0x250))) + "你好🙂  x\n\n\ty 1234"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text

    by_transformers = transformers.AutoTokenizer.from_pretrained(folder)
    assert by_transformers.chat_template == template
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == template
    assert (by_transformers.bos_token_id, by_transformers.eos_token_id) == (1, 2)
    assert by_transformers(text).input_ids == tokenizer.encode(text).ids


@needs_demo_model
def test_plain_transformers_answers_paris(converted: tuple[Path, list[str]]) -> None:
    folder, _ = converted
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    answer = output[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
