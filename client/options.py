"""Keyword options to protobuf: the one place, for both clients. What is left out keeps the server's default."""

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

from google.protobuf.message import Message as ProtoMessage

from client.errors import InvalidRequest
from protos import inference_pb2 as wire
from protos import sampling_pb2
from protos.option import Texts
from protos.sampling_messages import SAMPLING_OPTIONS, SamplingOptions


class Options(SamplingOptions, total=False):
    """How to generate; zero is zero (temperature 0 is greedy), None is as if left out.

    `json_schema` (a schema, or its JSON text; {} is any JSON value), `regex`, `lark` and `choice` exclude each other.
    """

    model: str | None
    json_schema: Mapping[str, object] | str | None
    regex: str | None
    lark: str | None
    choice: Sequence[str] | None
    user: str | None


class GenerateOptions(Options, total=False):
    add_special_tokens: bool | None


class TemplateOptions(TypedDict, total=False):
    """How messages become a prompt, and what may be called. Tools and their choice are in OpenAI's form."""

    tools: Sequence[Mapping[str, object]] | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, object] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class ChatOptions(Options, TemplateOptions, total=False):
    pass


class _MessageFields(TypedDict):
    role: str


class Message(_MessageFields, total=False):
    """One message of a chat, in OpenAI's form; content is text."""

    content: str | None
    name: str | None
    tool_calls: Sequence[Mapping[str, object]] | None
    tool_call_id: str | None


SAMPLING_FIELDS = frozenset(sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
GENERATION_FIELDS = frozenset(wire.GenerationOptions.DESCRIPTOR.fields_by_name)
# One text may stand for a list of one.
TEXT_LISTS = {name for name, option in SAMPLING_OPTIONS.items() if isinstance(option.allowed, Texts)}
GRAMMAR_FIELDS = frozenset(sampling_pb2.Grammar.DESCRIPTOR.fields_by_name)


def generate_request(prompt: str | Sequence[int], options: GenerateOptions) -> wire.GenerateRequest:
    """Raises InvalidRequest naming the option whose value has no place in the message, TypeError for an unknown one."""
    _refuse_unknown(options, GenerateOptions)
    request = wire.GenerateRequest(options=_generation_options(options))
    if isinstance(prompt, str):
        _fill(request, "text", prompt, "prompt")
    else:
        _fill(request, "token_ids", {"ids": prompt}, "prompt")
    _fill(request, "add_special_tokens", options.get("add_special_tokens"))
    return request


def chat_request(messages: Sequence[Message], options: ChatOptions) -> wire.ChatRequest:
    """Raises as `generate_request`."""
    _refuse_unknown(options, ChatOptions)
    request = _chat(messages, options)
    request.options.CopyFrom(_generation_options(options))
    return request


def tokenize_request(
    text: str | Sequence[Message], model: str | None, add_special_tokens: bool | None, options: TemplateOptions
) -> wire.TokenizeRequest:
    """Asks for the tokens of a text or of a chat. Raises as `generate_request`."""
    _refuse_unknown(options, TemplateOptions)
    request = wire.TokenizeRequest()
    if isinstance(text, str):
        _fill(request, "text", text)
    else:
        request.chat.CopyFrom(_chat(text, options))
    _fill(request, "model", model)
    _fill(request, "add_special_tokens", add_special_tokens)
    return request


def detokenize_request(token_ids: Sequence[int], model: str | None) -> wire.DetokenizeRequest:
    """Raises as `generate_request`."""
    request = wire.DetokenizeRequest()
    _fill(request, "token_ids", token_ids)
    _fill(request, "model", model)
    return request


def _refuse_unknown(options: Mapping[str, object], known: type[Options] | type[TemplateOptions]) -> None:
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"unknown option {name!r}")


def _chat(messages: Sequence[Message], options: TemplateOptions) -> wire.ChatRequest:
    request = wire.ChatRequest(
        messages=[_chat_message(f"messages[{number}]", message) for number, message in enumerate(messages)]
    )
    for name in ("tools", "tool_choice", "chat_template_kwargs"):
        _fill(request, f"{name}_json", _json(options.get(name), name), name)
    for name in ("parallel_tool_calls", "add_generation_prompt", "continue_final_message"):
        _fill(request, name, options.get(name))
    return request


def _chat_message(field: str, message: Message) -> wire.ChatMessage:
    encoded = wire.ChatMessage()
    for name in ("role", "content", "name", "tool_call_id"):
        _fill(encoded, name, message.get(name), f"{field}.{name}")
    _fill(encoded, "tool_calls_json", _json(message.get("tool_calls"), f"{field}.tool_calls"), f"{field}.tool_calls")
    return encoded


def _generation_options(options: Options) -> wire.GenerationOptions:
    encoded = wire.GenerationOptions()
    for name, value in options.items():
        if name in GENERATION_FIELDS:
            _fill(encoded, name, [value] if name in TEXT_LISTS and isinstance(value, str) else value)
        elif name in SAMPLING_FIELDS:
            _fill(encoded.sampling, name, value)
    _fill_grammar(encoded.sampling, options)
    return encoded


def _fill_grammar(sampling: sampling_pb2.SamplingParams, options: Options) -> None:
    kinds = {name: value for name, value in options.items() if name in GRAMMAR_FIELDS and value is not None}
    if len(kinds) > 1:
        raise InvalidRequest(f"{' and '.join(kinds)} exclude each other", field=list(kinds)[-1])
    for name, value in kinds.items():
        match name, value:
            case "choice", _:
                _fill(sampling.grammar, name, {"choices": [value] if isinstance(value, str) else value}, name)
            case "json_schema", Mapping():
                _fill(sampling.grammar, name, _json(value, name), name)
            case _:
                _fill(sampling.grammar, name, value, name)


def _fill(message: ProtoMessage, name: str, value: object, field: str | None = None) -> None:
    """Sets one field unless the value is None. Raises InvalidRequest naming it when the value does not fit."""
    if value is None:
        return
    try:
        message.MergeFrom(type(message)(**{name: value}))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{field or name}: {error}", field=field or name) from error


def _json(value: object, field: str) -> str | None:
    if value is None:
        return None
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} has no JSON form: {error}", field=field) from error
