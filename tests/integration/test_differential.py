"""Prefill and decode apart give exactly what one worker gives, and that is what plain transformers gives."""

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import pytest
import torch
import transformers

from client.options import GenerateOptions
from client.results import Choice, Completion
from pdserve import Client
from pdserve.demo_model import PACKAGE, default_cache_dir, ensure_demo_model
from protos.sampling_messages import FinishReason
from tests.cluster import Cluster, eventually

BLOCK = 16
TOKENS_PER_STEP = 48  # so that prompts of more take several chunks
WORKER_FLAGS = (
    f"--block_size={BLOCK}",
    f"--max_tokens_per_step={TOKENS_PER_STEP}",
    "--max_num_seqs=32",
    "--num_blocks=400",
)
LENGTHS = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, TOKENS_PER_STEP, TOKENS_PER_STEP + 1, 5 * TOKENS_PER_STEP + 3)
NUM_TOKENS = 10
END = 2  # the tiny models' end of sequence

salts = (f"salt {number}" for number in itertools.count())


@dataclass(frozen=True)
class Pair:
    """The same model twice: on one MIX worker, and on PREFILL and DECODE workers."""

    model: Path
    mix: Client
    pd: Client
    mix_cluster: Cluster
    pd_cluster: Cluster


@pytest.fixture(scope="module", params=[("tiny_llama", 2), ("tiny_qwen3", 1)], ids=["llama-2P2D", "qwen3-1P1D"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    fixture, number = request.param
    model: Path = request.getfixturevalue(fixture)
    roles = ["PREFILL"] * number + ["DECODE"] * number
    with (
        Cluster(model, ["MIX"], worker_flags=WORKER_FLAGS) as mix_cluster,
        Cluster(model, roles, worker_flags=WORKER_FLAGS) as pd_cluster,
        Client(mix_cluster.grpc_address, timeout_s=120) as mix,
        Client(pd_cluster.grpc_address, timeout_s=120) as pd,
    ):
        yield Pair(model, mix, pd, mix_cluster, pd_cluster)
        pd_cluster.check_no_leak()
        mix_cluster.check_no_leak()


def greedy(**options: Unpack[GenerateOptions]) -> GenerateOptions:
    options["temperature"] = 0.0
    return options


def seeded(**options: Unpack[GenerateOptions]) -> GenerateOptions:
    options["temperature"], options["seed"] = 1.0, 7
    return options


SAMPLINGS = {
    "greedy": greedy(ignore_eos=True, logprobs=3),
    "seeded": seeded(ignore_eos=True, logprobs=3),
}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, 512, (length,), generator=generator).tolist()


def assert_same(one: Completion, other: Completion) -> None:
    """Everything a client can see, but ids, times and what was cached."""
    assert len(one.choices) == len(other.choices)
    for a, b in zip(one.choices, other.choices, strict=True):
        assert (a.index, a.token_ids, a.text) == (b.index, b.token_ids, b.text)
        assert (a.finish_reason, a.matched_stop) == (b.finish_reason, b.matched_stop)
        assert_same_logprobs(a, b)
    assert one.usage is not None and other.usage is not None
    assert one.usage.completion_tokens == other.usage.completion_tokens
    assert one.usage.completion_tokens == sum(len(choice.token_ids) for choice in one.choices)
    assert one.usage.prompt_tokens == other.usage.prompt_tokens


def assert_same_logprobs(one: Choice, other: Choice) -> None:
    assert len(one.logprobs) == len(other.logprobs)
    if one.logprobs:
        assert [entry.token_id for entry in one.logprobs] == list(one.token_ids)
    for a, b in zip(one.logprobs, other.logprobs, strict=True):
        assert (a.token_id, a.rank, len(a.top)) == (b.token_id, b.rank, len(b.top))
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert [logprob for _, logprob in a.top] == pytest.approx([logprob for _, logprob in b.top], abs=1e-4)


def compare(pair: Pair, prompt: Sequence[int], **options: Unpack[GenerateOptions]) -> Completion:
    """What MIX and PD both give, from cold caches and from warm ones."""
    options.setdefault("max_tokens", NUM_TOKENS)
    options["cache_salt"] = next(salts)
    expected = pair.mix.generate(prompt, **options)
    cold = pair.pd.generate(prompt, **options)
    warm = pair.pd.generate(prompt, **options)
    for completion in (cold, warm, pair.mix.generate(prompt, **options)):
        assert_same(expected, completion)
    assert cold.usage is not None and warm.usage is not None
    assert cold.usage.cached_tokens == 0
    assert 0 <= warm.usage.cached_tokens < len(prompt)
    return expected


def greedy_of_transformers(folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Token ids by argmax, with neither our attention nor our scheduler."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    outputs = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(num_tokens):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        outputs.append(ids[len(prompt) :])
    return outputs


def test_mix_is_plain_transformers(pair: Pair) -> None:
    prompts = [prompt_of(length) for length in LENGTHS]
    expected = greedy_of_transformers(pair.model, prompts, NUM_TOKENS)
    for prompt, ids in zip(prompts, expected, strict=True):
        completion = pair.mix.generate(prompt, **greedy(max_tokens=NUM_TOKENS, ignore_eos=True))
        assert list(completion.token_ids) == ids


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("length", LENGTHS)
def test_pd_is_mix_at_every_length(pair: Pair, length: int, sampling: GenerateOptions) -> None:
    compare(pair, prompt_of(length), **sampling)


def test_the_kv_really_moves(pair: Pair) -> None:
    prompt = prompt_of(5 * BLOCK + 1, seed=1)
    received = sum_of(pair.pd_cluster, "decode", "pdserve_transfer_received_blocks_total")
    sent = sum_of(pair.pd_cluster, "prefill", "pdserve_transfer_sent_blocks_total")
    steps = sum_of(pair.pd_cluster, "decode", 'pdserve_computed_tokens_total{stage="prefill"}')
    completion = pair.pd.generate(prompt, **greedy(max_tokens=NUM_TOKENS, cache_salt=next(salts), ignore_eos=True))
    assert sum_of(pair.pd_cluster, "decode", "pdserve_transfer_received_blocks_total") == received + 6
    assert sum_of(pair.pd_cluster, "prefill", "pdserve_transfer_sent_blocks_total") == sent + 6
    assert sum_of(pair.pd_cluster, "decode", 'pdserve_computed_tokens_total{stage="prefill"}') == steps
    timeline = completion.timeline
    assert timeline is not None
    assert timeline.blocks_sent == 6
    assert timeline.attempts == 1
    assert timeline.prefill_instance.startswith("prefill")
    assert timeline.decode_instance.startswith("decode")


def sum_of(cluster: Cluster, prefix: str, metric: str) -> float:
    return sum(worker.metric(metric) for name, worker in cluster.workers.items() if name.startswith(prefix))


def test_a_request_that_ends_with_its_first_token_moves_nothing(pair: Pair) -> None:
    completion = pair.pd.generate(prompt_of(40), **greedy(max_tokens=1, cache_salt=next(salts)))
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(completion.token_ids) == 1
    assert completion.timeline is not None
    assert completion.timeline.blocks_sent == 0


@pytest.mark.parametrize("length", [3, BLOCK, 70])
def test_several_sequences(pair: Pair, length: int) -> None:
    expected = compare(pair, prompt_of(length), **seeded(n=3, ignore_eos=True, logprobs=2))
    assert [choice.index for choice in expected.choices] == [0, 1, 2]
    assert len({choice.token_ids for choice in expected.choices}) == 3
    compare(pair, prompt_of(length), **seeded(n=3))


@pytest.mark.parametrize(
    "sampling",
    [
        GenerateOptions(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
        GenerateOptions(temperature=0.0, repetition_penalty=1.3),
        GenerateOptions(temperature=0.8, seed=3, top_p=0.7, top_k=20, min_p=0.02),
        GenerateOptions(temperature=0.0, logit_bias={100: 60.0}),
        GenerateOptions(temperature=1.0, seed=2**63 - 1, frequency_penalty=-1.0),
        GenerateOptions(temperature=0.0, max_tokens=1, logprobs=5),
        GenerateOptions(temperature=0.0, max_tokens=2, logprobs=0),
    ],
    ids=str,
)
def test_every_way_of_sampling(pair: Pair, sampling: GenerateOptions) -> None:
    options = sampling.copy()
    options["ignore_eos"] = True
    compare(pair, prompt_of(55), **options)


def test_the_end_token_first(pair: Pair) -> None:
    expected = compare(pair, prompt_of(40), **greedy(logit_bias={END: 100.0}, logprobs=1))
    assert expected.token_ids == (END,)
    assert (expected.text, expected.finish_reason) == ("", FinishReason.STOP)


def test_min_tokens_holds_the_end_back_over_the_hand_off(pair: Pair) -> None:
    bias = {END: 100.0}
    expected = compare(pair, prompt_of(40), **greedy(logit_bias=bias, min_tokens=5, max_tokens=12))
    assert len(expected.token_ids) == 6
    assert expected.token_ids[-1] == END
    compare(pair, prompt_of(40), **greedy(logit_bias=bias, min_tokens=12, max_tokens=12))


def test_stop_token_ids_at_every_place(pair: Pair) -> None:
    free = pair.mix.generate(prompt_of(40), **greedy(max_tokens=NUM_TOKENS, ignore_eos=True))
    for place in (0, 1, NUM_TOKENS - 1):
        stop = free.token_ids[place]
        expected = compare(pair, prompt_of(40), **greedy(ignore_eos=True, stop_token_ids=[stop]))
        assert expected.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert (expected.finish_reason, expected.choices[0].matched_stop) == (FinishReason.STOP, str(stop))


def test_stop_strings_in_the_first_token_and_across_tokens(pair: Pair) -> None:
    prompt = pair.mix.tokenize("The prefill worker computes the prompt, and the decode worker ")
    free = pair.mix.generate(prompt, **greedy(max_tokens=24, ignore_eos=True))
    text = free.text
    stops = [text[:1], text[:2], text[3:8], text[-6:-2]]
    for stop, include in itertools.product(stops, (False, True)):
        expected = compare(
            pair, prompt, **greedy(max_tokens=24, ignore_eos=True, stop=[stop], include_stop_str_in_output=include)
        )
        end = text.index(stop) + (len(stop) if include else 0)
        assert (expected.text, expected.choices[0].matched_stop) == (text[:end], stop)
        assert expected.finish_reason is FinishReason.STOP


def test_many_at_once(pair: Pair) -> None:
    """Half of them share a prompt's beginning, so that caches, chunks and batches mix."""
    shared = prompt_of(3 * BLOCK + 5, seed=9)
    prompts = [shared + prompt_of(1 + 7 * n, seed=n) if n % 2 else prompt_of(11 * n + 1, seed=n) for n in range(16)]

    def one(client: Client, number: int) -> Completion:
        return client.generate(
            prompts[number],
            max_tokens=16,
            ignore_eos=True,
            logprobs=1,
            temperature=1.0 if number % 3 else 0.0,
            seed=number,
            n=1 + number % 2,
        )

    expected = [one(pair.mix, number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for client in (pair.pd, pair.mix):
            for number, completion in enumerate(pool.map(lambda n, c=client: one(c, n), range(16))):
                assert_same(expected[number], completion)


@pytest.mark.parametrize("cold", ["prefill", "decode"])
def test_one_side_cold_and_the_other_warm(pair: Pair, cold: str) -> None:
    """Half of the prompt, all but its last block, and all of it are known to one side and new to the other."""
    prompt = prompt_of(4 * BLOCK, seed=3)
    salt = next(salts)
    lengths = (2 * BLOCK, 3 * BLOCK, 4 * BLOCK)
    for length in lengths:
        for _ in range(2):  # every worker of the warm side should have seen it
            pair.pd.generate(prompt[:length], **greedy(max_tokens=4, ignore_eos=True, cache_salt=salt))
    for name, worker in pair.pd_cluster.workers.items():
        if name.startswith(cold):
            worker.kill()
            worker.start()
    pair.pd_cluster.wait_until_connected()
    for length in (*lengths, 4 * BLOCK - 1, 3 * BLOCK + 1):
        expected = pair.mix.generate(prompt[:length], **greedy(max_tokens=NUM_TOKENS, ignore_eos=True))
        completion = pair.pd.generate(
            prompt[:length], **greedy(max_tokens=NUM_TOKENS, ignore_eos=True, cache_salt=salt)
        )
        assert_same(expected, completion)
        assert completion.timeline is not None
        assert completion.timeline.prefill_instance != completion.timeline.decode_instance


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the demo model's package is not installed")
def test_the_demo_model() -> None:
    model = ensure_demo_model(default_cache_dir(), lambda _: None)
    with Cluster(model, ["PREFILL", "DECODE"]) as cluster, Client(cluster.grpc_address, timeout_s=200) as client:
        prompt = client.tokenize([{"role": "user", "content": "What is the capital of France?"}])
        completion = client.generate(prompt, **greedy(max_tokens=8))
        assert "Paris" in completion.text
        eventually(
            lambda: cluster.workers["decode-0"].metric("pdserve_transfer_received_blocks_total") > 0,
            "blocks were transferred",
        )
        (expected,) = greedy_of_transformers(model, [prompt], 8)
        assert list(completion.token_ids) == expected[: len(completion.token_ids)]
        cluster.check_no_leak()
