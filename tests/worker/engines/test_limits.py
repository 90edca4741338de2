import dataclasses
import math

import pytest

from kvcache.transfer.handle import KvHandle
from protos.sampling_messages import SamplingParams
from protos.session_messages import ErrorCode, Stage, Start
from worker.engines.limits import MAX_SEQUENCES, EngineLimits

LIMITS = EngineLimits(max_context=100, vocab_size=512, block_size=16, num_blocks=6, max_num_seqs=4)
PARAMS = SamplingParams(max_tokens=16)
START = Start(1, "r", Stage.WHOLE, tuple(range(20)), PARAMS)


def refused(start: Start, limits: EngineLimits = LIMITS) -> str | None:
    failure = limits.refusal(start)
    assert failure is None or failure.code is ErrorCode.INVALID_ARGUMENT, failure
    return None if failure is None else failure.message


def with_params(**changes: object) -> Start:
    return dataclasses.replace(START, sampling=dataclasses.replace(PARAMS, **changes))  # type: ignore[arg-type]


def test_what_fits_is_taken() -> None:
    assert refused(START) is None


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (dataclasses.replace(START, prompt_ids=()), "prompt_ids"),
        (dataclasses.replace(START, prompt_ids=(1, 512)), "prompt_ids"),
        (dataclasses.replace(START, prompt_ids=(1, -1)), "prompt_ids"),
        (dataclasses.replace(START, output_ids=(4096,)), "output_ids"),
        (dataclasses.replace(START, sequences=()), "sequences"),
        (dataclasses.replace(START, sequences=(0, 1, 0)), "sequences"),
        (dataclasses.replace(START, sequences=tuple(range(MAX_SEQUENCES + 1))), "sequences"),
        (dataclasses.replace(START, output_ids=tuple(range(16))), "max_tokens"),
        (with_params(max_tokens=0), "max_tokens"),
        (with_params(max_tokens=-1), "max_tokens"),
        (dataclasses.replace(START, stage=Stage.DECODE), "kv_handle"),
        (dataclasses.replace(START, time_limit_s=math.nan), "time_limit_s"),
        (dataclasses.replace(START, age_s=math.nan), "age_s"),
        (dataclasses.replace(START, age_s=-1.0), "age_s"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(start: Start, named: str) -> None:
    message = refused(start)
    assert message is not None and message.startswith(named)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: math.inf}),
        ("logit_bias", {512: 1.0}),
        ("seed", -(2**63) - 1),
        ("seed", 2**63),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("bad_words_ids", ((),)),
        ("bad_words_ids", ((1, 512),)),
    ],
)
def test_sampling_parameters_that_break_a_step_are_refused_by_name(name: str, value: object) -> None:
    message = refused(with_params(**{name: value}))
    assert message is not None and message.startswith(name)


def test_the_edges_of_every_range_are_taken() -> None:
    edges = {
        "temperature": (0.0, 2.0),
        "top_p": (1e-9, 1.0),
        "min_p": (0.0, 1.0),
        "seed": (-(2**63), 2**63 - 1),
        "logprobs": (0, 20),
        "logit_bias": ({0: -100.0}, {511: 100.0}),
        "stop_token_ids": ((511,), (512,)),  # one that no token has ends nothing
        "top_k": (-1, 10**6),
    }
    for name, values in edges.items():
        for value in values:
            assert refused(with_params(**{name: value})) is None, (name, value)
    assert refused(dataclasses.replace(START, sequences=(4, 2**32 - 1))) is None


def too_large(start: Start, limits: EngineLimits = LIMITS) -> str | None:
    """What a larger worker could take."""
    failure = limits.refusal(start)
    assert failure is None or failure.code is ErrorCode.RESOURCE_EXHAUSTED, failure
    return None if failure is None else failure.message


def test_the_context_holds_prompt_and_completion() -> None:
    roomy = dataclasses.replace(LIMITS, num_blocks=100)
    assert too_large(with_params(max_tokens=80), roomy) is None
    message = too_large(with_params(max_tokens=81), roomy)
    assert message is not None and "101 tokens" in message and "100" in message


def test_the_last_token_needs_no_block() -> None:
    assert too_large(dataclasses.replace(START, prompt_ids=tuple(range(81)))) is None  # 81 + 16 - 1 fill six blocks
    message = too_large(dataclasses.replace(START, prompt_ids=tuple(range(82))))
    assert message is not None and "7 blocks" in message


def test_a_resumed_leg_needs_blocks_for_what_it_has() -> None:
    limits = dataclasses.replace(LIMITS, num_blocks=2)
    resumed = dataclasses.replace(START, output_ids=tuple(range(12)), sampling=SamplingParams(max_tokens=13))
    assert too_large(resumed, limits) is None
    assert too_large(dataclasses.replace(resumed, sampling=SamplingParams(max_tokens=14)), limits) is not None


def test_a_prefill_counts_what_it_computes() -> None:
    """R13: what others decode is no concern of a prefill worker, until it is to decode itself."""
    prefill = dataclasses.replace(START, stage=Stage.PREFILL, prompt_ids=tuple(range(96)), sampling=SamplingParams(300))
    assert too_large(prefill) is None
    assert too_large(dataclasses.replace(prefill, prompt_ids=tuple(range(97)))) is not None
    failure = LIMITS.decode_refusal(prefill)
    assert failure is not None and failure.code is ErrorCode.RESOURCE_EXHAUSTED and "396 tokens" in failure.message
    assert LIMITS.decode_refusal(dataclasses.replace(prefill, sampling=SamplingParams(1))) is None


def test_more_sequences_than_run_at_once_are_taken() -> None:
    """R14: they take turns."""
    assert refused(dataclasses.replace(START, sequences=tuple(range(4 * LIMITS.max_num_seqs)))) is None


def test_a_decode_stage_with_a_source_is_taken() -> None:
    source = KvHandle("127.0.0.1:1", bytes(16), 1, 1, bytes(16), 60.0).encode()
    assert refused(dataclasses.replace(START, stage=Stage.DECODE, kv_handle=source)) is None
