"""How tokens are chosen, what ends a sequence, and what is told of a token, as plain dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a sequence ends, with every default filled in."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
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


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms from the model's raw distribution; `top` is most likely first."""

    token_id: int | None = None
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()
