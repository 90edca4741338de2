"""The fields chat and text completions have in common: OpenAI's, and the extensions of vLLM and SGLang.

Read from JSON: unknown fields are ignored, null is unset, of duplicate keys the last counts.
"""

import msgspec

from master.edge.fields.grammar import GrammarFields
from master.errors import invalid
from master.request import RequestOptions


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(GrammarFields, frozen=True, kw_only=True):
    """`timeline` asks for where the request's time went, in the response or the stream's last chunk."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    timeline: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return (
            self.includes_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
        )

    def check_stream_fields(self) -> None:
        """Raises ServingError for fields that a stream, or only a stream, can have."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options is set; it is only allowed when stream is true")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs", "prompt_logprobs is set; it is not available when stream is true")

    def to_options(
        self, *, n: int | None, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> RequestOptions:
        """What the two endpoints read differently is given. Raises ServingError for a bad grammar."""
        grammar_field, grammar = self.grammar() or ("grammar", None)
        return RequestOptions(
            model=self.model,
            n=n,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            ignore_eos=bool(self.ignore_eos),
            include_stop=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            bad_words=self.bad_words or (),
            grammar=grammar,
            grammar_field=grammar_field,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )
