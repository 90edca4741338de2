"""The hand-off record: what the decode worker needs besides the KV, and how it is checked.

It travels as the last frame of a transfer; the KV cache package does not look inside. There is no state of the
sampler in it: sampling is a function of seed, sequence and position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from protos.block_hash import prompt_hash
from worker.engines.compute_engine import FirstToken, HandOffError, Run


@dataclass(frozen=True, slots=True)
class HandOffRecord:
    """`tokens_hash` covers model, cache salt and every token whose KV was computed."""

    tokens_hash: bytes
    num_tokens: int
    first_tokens: tuple[FirstToken, ...]


def make_record(run: Run, first_tokens: Sequence[FirstToken]) -> bytes:
    return msgspec.msgpack.encode(HandOffRecord(_tokens_hash(run), _num_tokens(run), tuple(first_tokens)))


def check_record(data: bytes, run: Run, vocab_size: int) -> HandOffRecord:
    """Raises HandOffError unless the record is for exactly this run's tokens and sequences."""
    try:
        record = msgspec.msgpack.decode(data, type=HandOffRecord)
    except msgspec.MsgspecError as error:
        raise HandOffError(f"unreadable hand-off record: {error}") from error
    if record.num_tokens != _num_tokens(run) or record.tokens_hash != _tokens_hash(run):
        raise HandOffError(
            f"the KV offered is of other tokens: {record.num_tokens} with hash {record.tokens_hash.hex()}, "
            f"expected {_num_tokens(run)} with hash {_tokens_hash(run).hex()}"
        )
    offered = tuple(token.sequence for token in record.first_tokens)
    if offered != run.sequences:
        raise HandOffError(f"first tokens for sequences {offered}, expected {run.sequences}")
    for token in record.first_tokens:
        if not 0 <= token.token_id < vocab_size:
            raise HandOffError(f"first token {token.token_id} is not in the vocabulary of {vocab_size}")
    return record


def _num_tokens(run: Run) -> int:
    return len(run.prompt_ids) + len(run.output_ids)


def _tokens_hash(run: Run) -> bytes:
    return prompt_hash(run.root, (*run.prompt_ids, *run.output_ids))
