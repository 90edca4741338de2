"""How tokens are chosen, what ends a sequence, and what is told of a token.

A sampling parameter is declared here: what a client may set (`SamplingOptions`) and what a worker gets
(`SamplingParams`). The fields of all HTTP bodies, gRPC, the SDK's keywords, the wire, the checks of ranges and the
table of docs/api.md follow from it; protos/sampling.proto has the numbers of its fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, TypedDict

from protos.option import Api, Label, Option, Range, Texts, TokenIds, declared_options

# Responses and messages are one answer, and have no place for more.
ONLY_COMPLETIONS: Mapping[Api, str | None] = {Api.RESPONSES: None, Api.MESSAGES: None}
LOGPROBS = Range(0, 20)


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


class GrammarKind(Enum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the output must match. `text` is the schema (JSON), regex or Lark grammar; `choices` is for CHOICE."""

    kind: GrammarKind
    text: str = ""
    choices: tuple[str, ...] = ()


class SamplingOptions(TypedDict, total=False):
    """What a client may set. What is left out, or None, has its default; zero is zero."""

    n: Annotated[int | None, Option("how many outputs. Default 1", Range(1, 128), ONLY_COMPLETIONS)]
    max_tokens: Annotated[
        int | None,
        Option(
            "unset: all that the context leaves, in text completions 16. Messages need it",
            Range(1),
            {Api.RESPONSES: "max_output_tokens"},
        ),
    ]
    min_tokens: Annotated[int | None, Option("at most `max_tokens`", Range(0))]
    temperature: Annotated[float | None, Option("0, or less than 0.0001, is greedy", Range(0, 2))]
    top_p: Annotated[
        float | None,
        Option("samples from the likeliest tokens of this mass", Range(0, 1, excludes_low=True)),
    ]
    top_k: Annotated[int | None, Option("samples from this many; 0 and -1 are no limit", Range(-1, 2**31 - 1))]
    min_p: Annotated[float | None, Option("leaves out tokens below this share of the likeliest one", Range(0, 1))]
    presence_penalty: Annotated[
        float | None, Option("taken once from the logits of tokens in the output", Range(-2, 2))
    ]
    frequency_penalty: Annotated[float | None, Option("taken from them for each time they are in it", Range(-2, 2))]
    repetition_penalty: Annotated[
        float | None,
        Option("above 1 makes tokens seen so far less likely", Range(0, 2, excludes_low=True)),
    ]
    logit_bias: Annotated[
        Mapping[int, float] | None, Option("added to the logits of these tokens", TokenIds(1024, Range(-100, 100)))
    ]
    seed: Annotated[
        int | None,
        Option("unset: random. The same seed gives the same tokens, on whichever workers", Range(-(2**63), 2**63 - 1)),
    ]
    logprobs: Annotated[
        int | None,
        Option(
            "of each token and of so many likeliest ones: the model's own, before penalties and temperature",
            LOGPROBS,
            {Api.CHAT: "top_logprobs", Api.RESPONSES: "top_logprobs", Api.MESSAGES: None},
        ),
    ]
    prompt_logprobs: Annotated[
        int | None, Option("the same for the tokens of the prompt; not with `stream`", LOGPROBS, ONLY_COMPLETIONS)
    ]
    stop: Annotated[
        str | Sequence[str] | None,
        Option("ends an output before one of these texts", Texts(16, 1024, 4096), {Api.MESSAGES: "stop_sequences"}),
    ]
    stop_token_ids: Annotated[Sequence[int] | None, Option("ends an output with one of these tokens", TokenIds(1024))]
    ignore_eos: Annotated[bool | None, Option("goes on after the model's end-of-sequence tokens")]
    include_stop_str_in_output: Annotated[bool | None, Option("keeps the stop text that ended an output")]
    skip_special_tokens: Annotated[
        bool | None, Option("default true; false anyway if calls or reasoning are marked by special tokens")
    ]
    bad_words: Annotated[str | Sequence[str] | None, Option("never says these texts", Texts(1024, 1024, 16384))]
    thinking_token_budget: Annotated[
        int | None,
        Option(
            "most tokens of reasoning, -1 is no limit. Unset: half of all where a call or a format is demanded",
            Range(-1, 2**31 - 1),
            {Api.COMPLETIONS: None},
        ),
    ]
    priority: Annotated[int | None, Option("lower runs first. Default 0", Range(-100, 100))]
    cache_salt: Annotated[str | None, Option("prompts with different salts share no cache", Label(256))]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a worker gets, with every default filled in."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()  # the model's end-of-sequence ids among them, unless they are ignored
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None


SAMPLING_OPTIONS = declared_options(SamplingOptions)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms from the model's raw distribution; `top` is most likely first."""

    token_id: int | None = None
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()
