"""M7: ids that the tokenizer has no text for are never sampled."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from protos.sampling_messages import SamplingParams
from tests.checkpoints import VOCABULARY_SIZE, make_sentencepiece_checkpoint
from tests.worker.engines.torch.engine_rig import GREEDY, Node
from tests.worker.engines.torch.reference import prompt
from worker.engines.torch.loader import load_model
from worker.engines.torch.sampling.sampler import SampledToken, Sampler, SamplingRow
from worker.engines.torch.sampling.seen_tokens import SeenTokens
from worker.engines.torch.textless import Textless, find_textless

CPU = torch.device("cpu")
NUM_PADDED = 100
HOT = SamplingParams(max_tokens=40, temperature=2.0)


def padded(folder: Path, to: Path) -> Path:
    """A copy whose embedding has more rows than its tokenizer has tokens, and likes them."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], 2 * weights[name][-NUM_PADDED:]])
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY_SIZE + NUM_PADDED}))
    return to


def test_padding_is_never_sampled(tiny_llama: Path, tmp_path: Path) -> None:
    folder = padded(tiny_llama, tmp_path / "padded")
    logprobs = replace(GREEDY, logprobs=3)
    with Node(folder) as node:
        outcomes = [node.run(prompt(20), replace(HOT, seed=seed)) for seed in range(5)]
        greedy = node.run(prompt(20), logprobs)
    assert max(max(outcome.token_ids[0]) for outcome in [*outcomes, greedy]) < VOCABULARY_SIZE
    # The model's own distribution is told as it is.
    top = {token_id for entry in greedy.logprobs[0] for token_id, _ in entry.top}
    assert max(top) >= VOCABULARY_SIZE


def test_a_greedy_choice_is_the_best_that_has_text() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 5.0, 4.0]])
    row = SamplingRow(SamplingParams(temperature=0.0), 0, SeenTokens((0,)), ())
    for textless, best in ((None, 3), (Textless([], CPU), 3), (Textless([3], CPU), 4), (Textless([3, 4], CPU), 1)):
        (token,) = Sampler(textless).sample(logits, [row])
        assert isinstance(token, SampledToken) and token.token_id == best
    assert logits.tolist() == [[1.0, 3.0, 2.0, 5.0, 4.0]]


def test_no_bias_brings_one_back() -> None:
    row = SamplingRow(SamplingParams(temperature=1.0, logit_bias={1: 100.0}), 0, SeenTokens((0,)), ())
    tokens = Sampler(Textless([1], CPU)).sample(
        torch.zeros(50, 3), [replace(row, sequence=index) for index in range(50)]
    )
    seen = Counter(token.token_id for token in tokens if isinstance(token, SampledToken))
    assert set(seen) == {0, 2}


def test_a_hole_in_the_vocabulary_is_textless(tiny_llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token, hole = tokenizer["model"]["vocab"].popitem()
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != token]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert hole not in Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab().values()
    textless = find_textless(folder, load_model(folder, CPU, "auto"))
    assert len(textless) == 1 and hole in textless


@pytest.mark.parametrize("named_in", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_of_a_sentencepiece_model_have_text(named_in: str, tmp_path: Path) -> None:
    folder = make_sentencepiece_checkpoint(tmp_path, 0)
    loaded = load_model(folder, CPU, "auto")
    loaded = replace(loaded, vocab_size=loaded.vocab_size + 3)
    assert len(find_textless(folder, loaded)) == 3
    added = loaded.vocab_size - 2
    path = folder / named_in
    settings = json.loads(path.read_text()) if path.is_file() else {}
    more: dict[str, object] = {"<call>": added}
    if named_in == "tokenizer_config.json":
        more = {"added_tokens_decoder": {str(added): {}}}
    path.write_text(json.dumps(settings | more))
    textless = find_textless(folder, loaded)
    assert len(textless) == 2 and added not in textless


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_tokenizer_nothing_is_known_to_be_textless(
    content: str | None, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    assert len(find_textless(folder, load_model(folder, CPU, "auto"))) == 0


def test_the_end_needs_no_text(tiny_llama: Path, tmp_path: Path) -> None:
    folder = padded(tiny_llama, tmp_path / "padded")
    end = VOCABULARY_SIZE + 5
    transformers.GenerationConfig(eos_token_id=[2, end]).save_pretrained(folder)
    textless = find_textless(folder, load_model(folder, CPU, "auto"))
    assert len(textless) == NUM_PADDED - 1 and end not in textless
