"""The body of /v1/completions."""

from collections.abc import Sequence

from master.edge.fields.sampling import SamplingFields
from master.errors import invalid

MAX_PROMPTS = 256
MAX_CHOICES = 1024
DEFAULT_MAX_TOKENS = 16

# A prompt as text, or as token ids.
Prompt = str | list[int]


class CompletionBody(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    logprobs: int | None = None
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

    def num_sequences(self) -> int | None:
        """How many to generate for each prompt: best_of, or else n. Raises ServingError."""
        if self.best_of is None:
            return self.n
        asked = self.n or 1
        if not asked <= self.best_of <= 128:
            raise invalid("best_of", f"best_of is {self.best_of}; it must be between n, which is {asked}, and 128")
        if self.stream and self.best_of > asked:
            raise invalid("best_of", f"best_of is {self.best_of} and n is {asked}; a stream cannot choose the best")
        return self.best_of
