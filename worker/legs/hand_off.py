"""The hand-off record: what the decode worker needs besides the KV, and how it is checked.

It travels as the last frame of a transfer; the KV cache package does not look inside. There is no state of the
sampler in it: sampling is a function of seed, sequence and position (`worker.engines.torch.randomness`).
"""

from dataclasses import dataclass

import msgspec

from protos.block_hash import prompt_hash
from protos.messages import TokenLogprobs
from worker.legs.leg import Attempt


class HandOffError(ValueError):
    """The record does not belong to this attempt; its KV must not be used."""


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


def make_record(attempt: Attempt, first_tokens: list[FirstToken]) -> bytes:
    return msgspec.msgpack.encode(HandOffRecord(_tokens_hash(attempt), _num_tokens(attempt), tuple(first_tokens)))


def check_record(data: bytes, attempt: Attempt, vocab_size: int) -> HandOffRecord:
    """Raises HandOffError unless the record is for exactly this attempt's tokens and sequences."""
    try:
        record = msgspec.msgpack.decode(data, type=HandOffRecord)
    except msgspec.MsgspecError as error:
        raise HandOffError(f"unreadable hand-off record: {error}") from error
    if record.num_tokens != _num_tokens(attempt) or record.tokens_hash != _tokens_hash(attempt):
        raise HandOffError(
            f"the KV offered is of other tokens: {record.num_tokens} with hash {record.tokens_hash.hex()}, "
            f"expected {_num_tokens(attempt)} with hash {_tokens_hash(attempt).hex()}"
        )
    offered = tuple(token.sequence for token in record.first_tokens)
    if offered != attempt.start.sequences:
        raise HandOffError(f"first tokens for sequences {offered}, expected {attempt.start.sequences}")
    for token in record.first_tokens:
        if not 0 <= token.token_id < vocab_size:
            raise HandOffError(f"first token {token.token_id} is not in the vocabulary of {vocab_size}")
    return record


def _num_tokens(attempt: Attempt) -> int:
    return len(attempt.start.prompt_ids) + len(attempt.start.output_ids)


def _tokens_hash(attempt: Attempt) -> bytes:
    return prompt_hash(attempt.root, (*attempt.start.prompt_ids, *attempt.start.output_ids))
