"""The client API's protobuf messages to the domain request, and outputs back."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

import msgspec

from master.edge.conversation.choice_parser import ChoiceParser, ReadDelta
from master.errors import invalid
from master.output import GenerationOutput, SequenceDelta, Timeline, Usage
from master.parsing.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from master.request import RequestOptions
from protos import inference_pb2 as wire
from protos import sampling_pb2
from protos.sampling_codec import decode_grammar, encode_finish_reason, encode_logprobs, set_fields
from protos.sampling_messages import SAMPLING_OPTIONS, Grammar, SamplingOptions

T = TypeVar("T")


def decode_options(message: wire.GenerationOptions, time_limit_s: float | None) -> RequestOptions:
    """What the client asked for; `time_limit_s` is what is left of its deadline.

    Ranges are not checked here. Raises ServingError for what the message can say but this API can't do.
    """
    sampling = message.sampling
    if sampling.bad_words_ids:
        raise invalid("bad_words_ids", "bad_words_ids is only understood between master and workers; use bad_words")
    given = set_fields(message) | set_fields(sampling)
    return RequestOptions(
        model=message.model or None,
        sampling=msgspec.convert({name: given[name] for name in SAMPLING_OPTIONS.keys() & given}, SamplingOptions),
        grammar=_decode_grammar(sampling.grammar) if sampling.HasField("grammar") else None,
        time_limit_s=time_limit_s,
    )


def _decode_grammar(message: sampling_pb2.Grammar) -> Grammar:
    try:
        return decode_grammar(message)
    except ValueError as error:
        raise invalid("grammar", str(error)) from error


def decode_messages(messages: Sequence[wire.ChatMessage]) -> list[dict[str, object]]:
    """Messages as chat templates know them: OpenAI's form. Raises ServingError naming the message."""
    if not messages:
        raise invalid("messages", "messages is empty; at least one message is needed")
    return [_decode_message(f"messages[{number}]", message) for number, message in enumerate(messages)]


def _decode_message(field: str, message: wire.ChatMessage) -> dict[str, object]:
    if not message.role:
        raise invalid(f"{field}.role", f"{field}.role is empty")
    decoded: dict[str, object] = {"role": message.role, "content": message.content}
    if message.name:
        decoded["name"] = message.name
    if message.tool_calls_json:
        decoded["tool_calls"] = decode_objects(f"{field}.tool_calls_json", message.tool_calls_json)
    if message.tool_call_id:
        decoded["tool_call_id"] = message.tool_call_id
    return decoded


def decode_objects(field: str, text: str) -> list[dict[str, object]]:
    """A JSON array of objects. Raises ServingError naming the field."""
    return _decode_json(field, text, "array of objects", list[dict[str, object]])


def decode_object(field: str, text: str) -> dict[str, object]:
    """A JSON object. Raises ServingError naming the field."""
    return _decode_json(field, text, "object", dict[str, object])


def decode_value(field: str, text: str) -> object:
    """Any JSON. Raises ServingError naming the field."""
    return _decode_json(field, text, "value", object)


def _decode_json(field: str, text: str, form: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise invalid(field, f"{field} is not a JSON {form}: {error}") from error


def encode_output(
    output: GenerationOutput, request_id: str, model: str, created: int, readers: Sequence[ChoiceParser] = ()
) -> wire.GenerateResponse:
    """One increment; `created` is unix seconds and, like id and model, the same in all of a request.

    `readers`, one for each choice, tell content, reasoning and calls apart; without them everything is text.
    """
    if readers:
        choices = [_encode_read(choice, readers[choice.index].read(choice)) for choice in output.deltas]
    else:
        choices = [_encode_choice(choice) for choice in output.deltas]
    num_reasoning_tokens = sum(reader.num_reasoning_tokens for reader in readers) if output.usage else 0
    return wire.GenerateResponse(
        id=request_id,
        model=model,
        created=created,
        choices=choices,
        usage=_encode_usage(output.usage, num_reasoning_tokens) if output.usage else None,
        timeline=encode_timeline(output.timeline) if output.timeline else None,
        prompt_logprobs=encode_logprobs(output.prompt_logprobs),
    )


def _encode_choice(choice: SequenceDelta) -> wire.ChoiceDelta:
    return wire.ChoiceDelta(
        index=choice.index,
        text=choice.text,
        token_ids=choice.token_ids,
        logprobs=encode_logprobs(choice.logprobs),
        finish_reason=encode_finish_reason(choice.finish_reason) if choice.finish_reason else None,
        matched_stop=None if choice.matched_stop is None else str(choice.matched_stop),
    )


def _encode_read(choice: SequenceDelta, read: ReadDelta) -> wire.ChoiceDelta:
    encoded = _encode_choice(msgspec.structs.replace(choice, text="", finish_reason=read.finish_reason))
    for event in read.events:
        match event:
            case ContentDelta(text):
                encoded.text += text
            case ReasoningDelta(text):
                encoded.reasoning_text += text
            case ToolCallStart(index, call_id, name):
                encoded.tool_calls.add(index=index, id=call_id, name=name)
            case ToolCallArguments(index, text):
                calls = encoded.tool_calls
                is_same = bool(calls) and calls[-1].index == index
                call = calls[-1] if is_same else calls.add(index=index)
                call.arguments += text
    return encoded


def _encode_usage(usage: Usage, num_reasoning_tokens: int) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=num_reasoning_tokens,
    )


def encode_timeline(timeline: Timeline) -> wire.Timeline:
    """Both have the same names."""
    return wire.Timeline(**asdict(timeline))
