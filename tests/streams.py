"""Requests that run while a test disturbs what serves them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pytest

from client.options import GenerateOptions
from client.results import Completion, Delta
from pdserve import Client
from tests.cluster import PATIENCE_S, eventually

TIME_LIMIT_S = 120.0


@dataclass(frozen=True)
class Asked:
    """A request whose answer is known in advance: same prompt, same seed, same answer."""

    prompt: tuple[int, ...]
    options: GenerateOptions

    def answer(self, client: Client) -> Completion:
        return client.generate(self.prompt, timeout_s=TIME_LIMIT_S, **self.options)

    def salted(self, salt: str) -> "Asked":
        """With no cache in common with other salts."""
        options = self.options.copy()
        options["cache_salt"] = salt
        return Asked(self.prompt, options)


class Streams:
    """One stream in a thread for each request, begun on entering. Leaving waits for all of them."""

    def __init__(self, client: Client, asked: Sequence[Asked]) -> None:
        self._client = client
        self._threads = [threading.Thread(target=self._run, args=(n, a)) for n, a in enumerate(asked)]
        self._deltas: list[list[Delta]] = [[] for _ in asked]
        self._completions: list[Completion | None] = [None for _ in asked]
        self.errors: list[Exception] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for thread in self._threads:
            thread.join(TIME_LIMIT_S)

    def until_tokens(self, number: int) -> None:
        """Until every stream has given so many deltas."""
        eventually(
            lambda: bool(self.errors) or all(len(deltas) >= number for deltas in self._deltas),
            f"{number} deltas in every stream",
            PATIENCE_S,
        )
        assert not self.errors, self.errors

    @property
    def num_finished(self) -> int:
        return sum(completion is not None for completion in self._completions)

    def completions(self) -> list[Completion]:
        """What all requests gave, none of which may have failed; what streamed is what came in all."""
        self.__exit__()
        assert not self.errors, self.errors
        completions = [completion for completion in self._completions if completion is not None]
        assert len(completions) == len(self._threads), "a stream did not end"
        return completions

    def _run(self, number: int, asked: Asked) -> None:
        try:
            with self._client.stream(asked.prompt, timeout_s=TIME_LIMIT_S, **asked.options) as stream:
                for delta in stream:
                    self._deltas[number].append(delta)
                self._completions[number] = stream.completion(self._deltas[number])
        except Exception as error:
            self.errors.append(error)


def assert_undisturbed(expected: Sequence[Completion], got: Sequence[Completion]) -> None:
    """Every token once, every end the same, log-probabilities and usage too."""
    for one, other in zip(expected, got, strict=True):
        for a, b in zip(one.choices, other.choices, strict=True):
            assert a.token_ids == b.token_ids
            assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
            assert [entry.token_id for entry in a.logprobs] == [entry.token_id for entry in b.logprobs]
            for x, y in zip(a.logprobs, b.logprobs, strict=True):
                assert x.logprob == pytest.approx(y.logprob, abs=1e-4)
        assert one.usage is not None and other.usage is not None
        assert one.usage.completion_tokens == other.usage.completion_tokens
