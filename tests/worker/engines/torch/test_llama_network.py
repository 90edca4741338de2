"""The compiled network: transformers' logits, the same bits in every batch, and what serves where it can't."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from config.flags import FlagError
from kvcache.pool_memory import PoolMemory
from pdserve.demo_model import default_cache_dir, ensure_demo_model
from tests.architectures import EQUAL, Architecture, make_model
from tests.checkpoints import Family
from tests.worker.engines.torch.engine_rig import GREEDY, SEEDED, Node, hand_off
from tests.worker.engines.torch.reference import Reference, prompt
from worker.config import DType, Quantization
from worker.engines.torch.kernels import build
from worker.engines.torch.kernels.library import load_library
from worker.engines.torch.llama_network import MODEL_TYPES, LlamaNetwork
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.loader import load_model
from worker.engines.torch.network_choice import with_checked_network
from worker.engines.torch.paged_forward import PagedForward, Part
from worker.engines.torch.paged_network import TransformersNetwork
from worker.engines.torch.row_blocks import is_invariant_at_any_size

CPU = torch.device("cpu")
PRECISIONS = [("float32", False), ("float16", False), ("bfloat16", False), ("float32", True)]
MOST_PERPLEXITY = 1.01  # of int8, relative to float32
NUM_TOKENS = 512

needs_compiler = pytest.mark.skipif(load_library() is None, reason="no C compiler")


def network_of(folder: Path, dtype: str = "float32", is_int8: bool = False) -> LoadedModel:
    return with_checked_network(load_model(folder, CPU, dtype, is_int8=is_int8), 256, num_threads=1)


@needs_compiler
@pytest.mark.parametrize(
    "architecture", [a for a in EQUAL if a.name.split()[0] in MODEL_TYPES], ids=lambda architecture: architecture.name
)
@pytest.mark.parametrize(("dtype", "is_int8"), PRECISIONS)
def test_the_family_is_compiled(architecture: Architecture, dtype: str, is_int8: bool, tmp_path: Path) -> None:
    loaded = network_of(make_model(tmp_path, architecture), dtype, is_int8)
    assert isinstance(loaded.network, LlamaNetwork)
    assert is_invariant_at_any_size(loaded)


@needs_compiler
@pytest.mark.parametrize(
    "flags",
    [
        {"dtype": DType.FLOAT16},
        {"dtype": DType.BFLOAT16, "batch_invariant": True},
        {"quantization": Quantization.INT8},
        {"quantization": Quantization.INT8, "dtype": DType.FLOAT16},
        {"kv_dtype": DType.FLOAT16},
        {"quantization": Quantization.INT8, "kv_dtype": DType.BFLOAT16},
    ],
    ids=["float16", "bfloat16", "int8", "int8 over KV in 16 bits", "KV in float16", "int8 over KV in bfloat16"],
)
def test_apart_and_together_and_in_batches_give_one_answer(
    flags: dict[str, object], checkpoint: Callable[[Family], Path]
) -> None:
    """Log-probabilities and all, to the last bit, in less than full precision too."""
    folder = checkpoint(Family.QWEN3)
    params = [replace(sampling, logprobs=3) for sampling in (SEEDED, GREEDY)]
    prompts = [prompt(length, 40) for length in (70, 33, 5)]
    with Node(folder, **flags) as node:
        alone = [node.run(ids, sampling) for ids in prompts for sampling in params]
    with Node(folder, max_tokens_per_step=23, **flags) as busy, Node(folder, **flags) as decode:
        starts = [busy.start(ids, sampling) for ids in prompts for sampling in params]
        for start, expected in zip(starts, alone, strict=True):
            outcome = busy.master.result(start)
            assert (outcome.token_ids, outcome.logprobs) == (expected.token_ids, expected.logprobs)
        for ids, expected in zip(prompts, alone[1::2], strict=True):
            handed = hand_off(busy, decode, ids, params[1])[1]
            assert (handed.token_ids, handed.logprobs) == (expected.token_ids, expected.logprobs)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_transformers_serves(tiny_llama: Path) -> None:
    assert isinstance(network_of(tiny_llama).network, TransformersNetwork)
    with Node(tiny_llama) as node:
        assert node.run(prompt(20)).token_ids[0] == Reference(tiny_llama).greedy(prompt(20), GREEDY.max_tokens)
    with pytest.raises(FlagError, match="can't be rounded to int8 here: that takes a C compiler"):
        Node(tiny_llama, quantization=Quantization.INT8)


def test_a_compiler_that_fails_is_a_reason_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "kernels.c"
    source.write_text("int broken(\n")
    monkeypatch.setattr(build, "SOURCES", [source])
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(build.CannotBuild) as reason:
        build.library_file()
    assert "\n" not in str(reason.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_other_architectures_are_not_rounded(tmp_path: Path) -> None:
    other = next(a for a in EQUAL if a.name == "gemma2 sliding")
    with pytest.raises(FlagError, match="gemma2 can't be rounded to int8"):
        Node(make_model(tmp_path, other), quantization=Quantization.INT8)


@needs_compiler
def test_the_network_reads_nothing_of_the_model_but_its_embedding(checkpoint: Callable[[Family], Path]) -> None:
    """What else it knew by address could be freed under it."""
    loaded = network_of(checkpoint(Family.QWEN3), "float16")
    forward = PagedForward(loaded.network, PoolMemory(loaded.layout(16), 2))
    part = Part(prompt(20), 0, range(2), range(20), first_position=0)
    expected = forward.run([part])
    for name, parameter in loaded.model.named_parameters():
        if "embed_tokens" not in name:
            parameter.data = torch.full_like(parameter, torch.nan)
    assert torch.equal(forward.run([part]), expected)


@needs_compiler
@pytest.mark.parametrize(("dtype", "is_int8"), PRECISIONS)
def test_any_number_of_threads_computes_the_same_bits(
    dtype: str, is_int8: bool, checkpoint: Callable[[Family], Path]
) -> None:
    found = []
    for num_threads in (1, 2, 5):
        before = len(os.listdir("/proc/self/task"))
        loaded = load_model(checkpoint(Family.QWEN3), CPU, dtype, is_int8=is_int8)
        loaded = with_checked_network(loaded, 64, num_threads=num_threads)
        assert len(os.listdir("/proc/self/task")) >= before + num_threads - 1
        forward = PagedForward(loaded.network, PoolMemory(loaded.layout(16), 6))
        parts = [
            Part(prompt(30, 1), 0, range(3), range(30), first_position=0),
            *(Part(prompt(1, seed), 0, range(seed, seed + 1), range(1), first_position=0) for seed in (3, 4, 5)),
        ]
        found.append(forward.run(parts))
        del forward, loaded
    assert all(torch.equal(logits, found[0]) for logits in found[1:])


@needs_compiler
def test_int8_shares_no_kv_with_full_precision(tiny_llama: Path) -> None:
    full, rounded = network_of(tiny_llama), network_of(tiny_llama, is_int8=True)
    assert full.layout(16).fingerprint() != rounded.layout(16).fingerprint()


@needs_compiler
def test_kv_in_16_bits_is_another_model_of_half_the_size(tiny_llama: Path) -> None:
    full = load_model(tiny_llama, CPU, "auto")
    half = load_model(tiny_llama, CPU, "auto", kv_dtype_name="bfloat16")
    assert full.served != half.served and full.layout(16).fingerprint() != half.layout(16).fingerprint()
    assert full.layout(16).block_bytes == 2 * half.layout(16).block_bytes


@needs_compiler
def test_int8_costs_the_demo_model_less_than_a_percent_of_perplexity() -> None:
    folder = ensure_demo_model(default_cache_dir(), lambda _: None)
    text = Path("LICENSE").read_text()
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    exact, rounded = network_of(folder), network_of(folder, is_int8=True)
    assert isinstance(exact.network, LlamaNetwork) and isinstance(rounded.network, LlamaNetwork)
    assert _perplexity(rounded, ids) < _perplexity(exact, ids) * MOST_PERPLEXITY


def _perplexity(loaded: LoadedModel, ids: list[int]) -> float:
    """Of windows of NUM_TOKENS."""
    num_blocks = NUM_TOKENS // 16
    forward = PagedForward(loaded.network, PoolMemory(loaded.layout(16), num_blocks))
    total, count = 0.0, 0
    for first in range(0, len(ids) - NUM_TOKENS + 1, NUM_TOKENS):
        window = ids[first : first + NUM_TOKENS]
        logits = forward.run([Part(window, 0, range(num_blocks), range(NUM_TOKENS), first_position=0)])
        losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(window[1:]), reduction="sum")
        total, count = total + float(losses), count + NUM_TOKENS - 1
    return math.exp(total / count)
