"""The hand-off record: what the decode worker needs besides the KV, and how it is checked.

It travels as the last frame of a transfer; the KV cache package does not look inside. There is no state of the
sampler in it: sampling is a function of seed, sequence and position (`worker.engines.torch.randomness`).
"""

from dataclasses import dataclass

import msgspec

from protos.block_hash import prompt_hash
from protos.sampling_messages import TokenLogprobs
from worker.legs.leg import Leg


class HandOffError(ValueError):
    """The record does not belong to this leg; its KV must not be used."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What prefill chose for one sequence."""

    sequence: int
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class HandOffRecord:
    """`tokens_hash` covers model, cache salt and every token whose KV was computed."""

    tokens_hash: bytes
    num_tokens: int
    first_tokens: tuple[FirstToken, ...]


def make_record(leg: Leg, first_tokens: list[FirstToken]) -> bytes:
    return msgspec.msgpack.encode(HandOffRecord(_tokens_hash(leg), _num_tokens(leg), tuple(first_tokens)))


def check_record(data: bytes, leg: Leg, vocab_size: int) -> HandOffRecord:
    """Raises HandOffError unless the record is for exactly this leg's tokens and sequences."""
    try:
        record = msgspec.msgpack.decode(data, type=HandOffRecord)
    except msgspec.MsgspecError as error:
        raise HandOffError(f"unreadable hand-off record: {error}") from error
    if record.num_tokens != _num_tokens(leg) or record.tokens_hash != _tokens_hash(leg):
        raise HandOffError(
            f"the KV offered is of other tokens: {record.num_tokens} with hash {record.tokens_hash.hex()}, "
            f"expected {_num_tokens(leg)} with hash {_tokens_hash(leg).hex()}"
        )
    offered = tuple(token.sequence for token in record.first_tokens)
    if offered != leg.start.sequences:
        raise HandOffError(f"first tokens for sequences {offered}, expected {leg.start.sequences}")
    for token in record.first_tokens:
        if not 0 <= token.token_id < vocab_size:
            raise HandOffError(f"first token {token.token_id} is not in the vocabulary of {vocab_size}")
    return record


def _num_tokens(leg: Leg) -> int:
    return len(leg.start.prompt_ids) + len(leg.start.output_ids)


def _tokens_hash(leg: Leg) -> bytes:
    return prompt_hash(leg.root, (*leg.start.prompt_ids, *leg.start.output_ids))
