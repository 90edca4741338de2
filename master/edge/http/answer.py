"""The form an HTTP request is answered in."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from master.errors import ServingError
from master.output import GenerationOutput
from master.request import GenerationRequest


class Answer(Protocol):
    """Turns outputs into bytes: for a stream events, or else all at the end."""

    @property
    def id(self) -> str: ...

    @property
    def is_streamed(self) -> bool:
        """Whether it is sent as events while it comes; if so it is a `StreamedAnswer`."""
        ...

    @property
    def requests(self) -> Sequence[GenerationRequest]:
        """One for each prompt."""
        ...

    def add(self, prompt: int, output: GenerationOutput) -> bytes:
        """Events that an output of the prompt of this number makes; none when not streaming.

        Raises ServingError for an output that is a failure.
        """
        ...

    def end(self) -> bytes:
        """The last events, or the whole body. Raises ServingError if something is missing."""
        ...


@runtime_checkable
class StreamedAnswer(Answer, Protocol):
    """One that is sent as events while it comes; the others are sent at their end."""

    def fail(self, error: ServingError) -> bytes:
        """The last events of a stream that had begun."""
        ...
