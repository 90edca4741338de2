"""Log-probabilities in the three forms clients know."""

from collections.abc import Sequence

import msgspec

from master.text.detokenizer import IncrementalDetokenizer
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import TokenLogprobs

# JSON has no infinity; OpenAI uses this for "cannot be".
LOWEST_LOGPROB = -9999.0


class ChatLogprobs:
    """OpenAI's chat form: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}`."""

    def __init__(self, tokenizer: Tokenizer, tokens_as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._tokens_as_ids = tokens_as_ids

    def content(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[dict[str, object]]:
        return [
            self._token(token_id, entry.logprob)
            | {"top_logprobs": [self._token(other, logprob) for other, logprob in entry.top]}
            for token_id, entry in zip(token_ids, logprobs, strict=False)
        ]

    def _token(self, token_id: int, logprob: float | None) -> dict[str, object]:
        return {
            "token": id_name(token_id) if self._tokens_as_ids else self._tokenizer.token_text(token_id),
            "logprob": _finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


class CompletionLogprobs(msgspec.Struct):
    """OpenAI's completions form; the lists run in parallel. `text_offset` counts characters of the choice's text."""

    tokens: list[str] = msgspec.field(default_factory=list)
    token_logprobs: list[float | None] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float | None] | None] = msgspec.field(default_factory=list)
    text_offset: list[int] = msgspec.field(default_factory=list)


class CompletionLogprobsWriter:
    """Writes tokens in order. `prompt_tail_ids` and `num_characters` of text come before them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        tokens_as_ids: bool,
        num_characters: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_tail_ids, skip_special_tokens)
        self._tokens_as_ids = tokens_as_ids
        self._num_characters = num_characters

    def write(self, into: CompletionLogprobs, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        for token_id, entry in zip(token_ids, logprobs, strict=False):
            into.tokens.append(self._name(token_id))
            into.token_logprobs.append(_finite(entry.logprob))
            into.top_logprobs.append(self._top(token_id, entry))
            into.text_offset.append(self._num_characters)
            self._num_characters += len(self._detokenizer.push((token_id,)))

    def _top(self, token_id: int, entry: TokenLogprobs) -> dict[str, float | None] | None:
        if entry.logprob is None:
            return None
        top = {self._name(other): _finite(logprob) for other, logprob in entry.top}
        # the chosen token is always there, so that there may be one more than asked for
        return top | {self._name(token_id): _finite(entry.logprob)}

    def _name(self, token_id: int) -> str:
        """Part of a character is named by its bytes, as OpenAI does; as U+FFFD all such tokens would look the same."""
        if self._tokens_as_ids:
            return id_name(token_id)
        token = self._tokenizer.token_bytes(token_id)
        try:
            return token.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def id_name(token_id: int) -> str:
    """What vLLM calls a token whose text may not be its own."""
    return f"token_id:{token_id}"


def prompt_logprobs(tokenizer: Tokenizer, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[object]:
    """vLLM's form: for each prompt token null, or `{id: {"logprob", "rank", "decoded_token"}}`, likeliest too."""
    return [
        _ranked(tokenizer, token_id, entry) if entry.logprob is not None else None
        for token_id, entry in zip(prompt_ids, logprobs, strict=False)
    ]


def _ranked(tokenizer: Tokenizer, token_id: int, entry: TokenLogprobs) -> dict[str, object]:
    ranks = [(token_id, entry.logprob, entry.rank)]
    ranks += [(other, logprob, rank) for rank, (other, logprob) in enumerate(entry.top, start=1) if other != token_id]
    return {
        str(ranked_id): {"logprob": _finite(logprob), "rank": rank, "decoded_token": tokenizer.token_text(ranked_id)}
        for ranked_id, logprob, rank in ranks
    }


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)
