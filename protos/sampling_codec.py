"""Sampling parameters, log-probabilities and token ids to protobuf and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from protos import sampling_pb2 as wire
from protos.sampling_messages import FinishReason, Grammar, GrammarKind, SamplingParams, TokenLogprobs

T = TypeVar("T")

ID_BYTES = 4
_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))

_FINISH_REASONS = {int(wire.FinishReason.Value(f"FINISH_REASON_{reason.name}")): reason for reason in FinishReason}


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32: parsing them costs a fifth of a repeated field's."""
    return np.asarray(ids, dtype="<u4").tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    if len(data) == ID_BYTES:  # one token, as most steps bring; numpy is made for prompts
        return (int.from_bytes(data, "little"),)
    if len(data) % ID_BYTES:
        raise ValueError(f"token ids: {len(data)} bytes are no whole number of uint32")
    return tuple(np.frombuffer(data, dtype="<u4").tolist())


def encode_sampling(params: SamplingParams) -> wire.SamplingParams:
    values = {name: getattr(params, name) for name in _SAMPLING_FIELDS}
    values["bad_words_ids"] = [pack_ids(ids) for ids in params.bad_words_ids]
    values["grammar"] = encode_grammar(params.grammar) if params.grammar is not None else None
    return wire.SamplingParams(**values)


def decode_sampling(message: wire.SamplingParams) -> SamplingParams:
    """Raises ValueError for what can't be read."""
    values = set_fields(message)
    values["bad_words_ids"] = tuple(unpack_ids(ids) for ids in message.bad_words_ids)
    values["grammar"] = decode_grammar(message.grammar) if message.HasField("grammar") else None
    return SamplingParams(**values)


def set_fields(message: Message) -> dict[str, Any]:
    """Fields by name. One that has no presence counts as set unless it is empty or zero."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    """Turns protobuf's own containers into Python's."""
    match value:
        case str() | bytes():
            return value
        case Mapping():
            return dict(value)
        case Sequence():
            return tuple(value)
    return value


def encode_grammar(grammar: Grammar) -> wire.Grammar:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return wire.Grammar(json_schema=grammar.text)
        case GrammarKind.REGEX:
            return wire.Grammar(regex=grammar.text)
        case GrammarKind.LARK:
            return wire.Grammar(lark=grammar.text)
        case GrammarKind.CHOICE:
            return wire.Grammar(choice=wire.ChoiceList(choices=grammar.choices))


def decode_grammar(message: wire.Grammar) -> Grammar:
    match message.WhichOneof("kind"):
        case "json_schema":
            return Grammar(GrammarKind.JSON_SCHEMA, message.json_schema)
        case "regex":
            return Grammar(GrammarKind.REGEX, message.regex)
        case "lark":
            return Grammar(GrammarKind.LARK, message.lark)
        case "choice":
            return Grammar(GrammarKind.CHOICE, choices=tuple(message.choice.choices))
        case _:
            raise ValueError("grammar: no kind is set")


def encode_logprobs(items: Iterable[TokenLogprobs]) -> list[wire.TokenLogprobs]:
    return [
        wire.TokenLogprobs(
            chosen=None if item.token_id is None else _logprob(item.token_id, item.logprob or 0.0),
            top=[_logprob(token_id, value) for token_id, value in item.top],
            rank=item.rank,
        )
        for item in items
    ]


def _logprob(token_id: int, value: float) -> wire.TokenLogprob:
    return wire.TokenLogprob(token_id=token_id, logprob=value)


def decode_logprobs(items: Iterable[wire.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(
            token_id=item.chosen.token_id if item.HasField("chosen") else None,
            logprob=item.chosen.logprob if item.HasField("chosen") else None,
            rank=item.rank if item.HasField("rank") else None,
            top=tuple((top.token_id, top.logprob) for top in item.top),
        )
        for item in items
    )


def encode_finish_reason(reason: FinishReason) -> str:
    return f"FINISH_REASON_{reason.name}"


def decode_finish_reason(number: int) -> FinishReason:
    return known_value(_FINISH_REASONS, number, "finish_reason")


def known_value(table: dict[int, T], number: int, name: str) -> T:
    """Look up an enum value from the wire. Raises ValueError naming the field when a newer peer sent another."""
    value = table.get(number)
    if value is None:
        raise ValueError(f"{name}: unknown value {number}")
    return value
