"""The fields chat and text completions have in common besides the sampling options.

Read from JSON: unknown fields are ignored, null is unset, of duplicate keys the last counts.
"""

from collections.abc import Sequence

import msgspec

from master.edge.fields.grammar import GrammarFields
from master.edge.fields.sampling import SamplingFields
from master.errors import invalid
from master.request import RequestOptions
from protos.sampling_messages import SamplingOptions

MAX_NAME_CHARACTERS = 256


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionFields(GrammarFields, SamplingFields, frozen=True, kw_only=True):
    """`timeline` asks for where the request's time went, in the response or the stream's last chunk.

    FastDeploy's clients call that `collect_metrics`, and say `min_tokens` in `metadata`. What a client calls its
    request is `request_id` with vLLM, `rid` with SGLang.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    timeline: bool | None = None
    collect_metrics: bool | None = None
    metadata: dict[str, object] | None = None
    request_id: str | None = None
    rid: str | list[str] | None = None

    @property
    def tokens_as_ids(self) -> bool:
        return bool(self.return_tokens_as_token_ids)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return (
            self.includes_usage and self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
        )

    def sampling_options(self) -> SamplingOptions:
        sampling = super().sampling_options()
        match self.metadata:
            case {"min_tokens": int(min_tokens)}:
                sampling.setdefault("min_tokens", min_tokens)
        return sampling

    def request_options(self) -> RequestOptions:
        """Raises ServingError for what can't be read, or can't be together with a stream."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options is set; it is only allowed when stream is true")
        sampling = self.sampling_options()
        if sampling.get("prompt_logprobs") is not None and self.stream:
            raise invalid("prompt_logprobs", "prompt_logprobs is set; it is not available when stream is true")
        grammar_field, grammar = self.grammar() or ("grammar", None)
        return RequestOptions(self.model, sampling, grammar, grammar_field)

    def request_names(self, num_prompts: int) -> Sequence[str | None]:
        """One for each prompt. Raises ServingError."""
        if not isinstance(self.rid, list):
            names = [self.rid or self.request_id] * num_prompts
        elif len(self.rid) != num_prompts:
            raise invalid("rid", f"rid has {len(self.rid)} names for {num_prompts} prompts")
        else:
            names = [*self.rid]
        for name in names:
            if name is not None and len(name) > MAX_NAME_CHARACTERS:
                field = "rid" if self.rid else "request_id"
                told = f"{field} has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are allowed"
                raise invalid(field, told)
        return names
