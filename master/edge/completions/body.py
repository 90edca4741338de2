"""The body of /v1/completions."""

from collections.abc import Sequence
from dataclasses import replace

from master.edge.fields.completion import CompletionFields
from master.edge.fields.sampling import with_sampling
from master.errors import invalid
from master.request import RequestOptions
from protos.option import Api
from protos.sampling_messages import SamplingOptions

MAX_PROMPTS = 256
MAX_CHOICES = 1024
MAX_BEST_OF = 128
DEFAULT_MAX_TOKENS = 16

# A prompt as text, or as token ids.
Prompt = str | list[int]


@with_sampling(Api.COMPLETIONS)
class CompletionBody(CompletionFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    def prompts(self) -> Sequence[Prompt]:
        """Raises ServingError if there is none, or if texts, ids and lists of ids are mixed."""
        match self.prompt:
            case None | []:
                raise invalid("prompt", "prompt is missing or empty; it must have at least one token")
            case str():
                return [self.prompt]
        texts = [item for item in self.prompt if isinstance(item, str)]
        ids = [item for item in self.prompt if isinstance(item, int)]
        id_lists = [item for item in self.prompt if isinstance(item, list)]
        num_items = len(self.prompt)
        if len(ids) == num_items:
            return [ids]
        if num_items > MAX_PROMPTS:
            raise invalid("prompt", f"prompt has {num_items} prompts; at most {MAX_PROMPTS} are allowed")
        if len(texts) == num_items:
            return texts
        if len(id_lists) == num_items:
            return id_lists
        raise invalid("prompt", "prompt mixes texts, token ids and lists of token ids; all must be of one kind")

    def request_options(self) -> RequestOptions:
        """What was asked for, and what `best_of` and `echo` need besides. Raises ServingError."""
        options = super().request_options()
        asked = options.sampling
        sampling: SamplingOptions = {**asked}
        if self.best_of is not None:
            n = asked.get("n")
            sampling["n"] = self._num_sequences(1 if n is None else n, self.best_of)
            sampling.setdefault("logprobs", 0)  # the best are chosen by it
        if self.echo and (num_top := asked.get("logprobs")) is not None:
            sampling["prompt_logprobs"] = max(num_top, asked.get("prompt_logprobs") or 0)
        return replace(options, sampling=sampling)

    def _num_sequences(self, n: int, best_of: int) -> int:
        if not 1 <= n <= best_of <= MAX_BEST_OF:
            told = f"it must be between n, which is {n}, and {MAX_BEST_OF}"
            raise invalid("best_of", f"best_of is {best_of}; {told}")
        if self.stream and best_of > n:
            raise invalid("best_of", f"best_of is {best_of} and n is {n}; a stream cannot choose the best")
        return best_of
