"""What clients get, as types: for /openapi.json and whoever reads it. Answers are put together from bytes elsewhere.

A field that not every answer has is `UnsetType`; further fields may come. Nothing here is made while serving.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from master.output import Timeline

JsonObject = dict[str, object]


class ErrorObject(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct, frozen=True):
    """OpenAI's error; a stream that had begun ends with it."""

    error: ErrorObject


class MessagesErrorObject(msgspec.Struct, frozen=True):
    type: str
    message: str


class MessagesError(msgspec.Struct, frozen=True):
    """Anthropic's error."""

    error: MessagesErrorObject
    type: Literal["error"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class TokenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AnswerMessage(msgspec.Struct, frozen=True):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None
    reasoning: str | None
    tool_calls: list[JsonObject] | UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: JsonObject | None
    stop_reason: str | int | None
    matched_stop: str | int | None
    token_ids: list[int] | None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    prompt_logprobs: list[JsonObject | None] | None
    prompt_token_ids: list[int] | None
    timeline: Timeline | UnsetType = UNSET
    metrics: dict[str, float] | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: Literal["stop", "length", "cancelled"]
    logprobs: JsonObject | None
    stop_reason: str | int | None
    matched_stop: str | int | None
    prompt_logprobs: list[JsonObject | None] | None
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None


class TextCompletion(msgspec.Struct, frozen=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenUsage
    timeline: Timeline | UnsetType = UNSET
    metrics: dict[str, float] | UnsetType = UNSET


class ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class ResponsesAnswer(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete", "failed"]
    output: list[JsonObject]
    usage: ResponsesUsage | None


class MessagesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class MessagesAnswer(msgspec.Struct, frozen=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: str
    usage: MessagesUsage


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int


class Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizedText(msgspec.Struct, frozen=True):
    prompt: str


class Model(msgspec.Struct, frozen=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    context_length: int


class ModelList(msgspec.Struct, frozen=True):
    object: Literal["list"]
    data: list[Model]


class Readiness(msgspec.Struct, frozen=True):
    status: str
    reason: str | UnsetType = UNSET
