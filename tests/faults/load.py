"""Streaming clients that keep a cluster busy while something is done to it, and compare every answer."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.retries import RetryPolicy
from pdserve import AsyncClient, PdserveError
from tests.faults.questions import Question

ONCE = RetryPolicy(max_attempts=1)  # what the client would hide must be seen
REQUEST_TIMEOUT_S = 120.0
AFTER_FAILURE_S = 1.0  # before a client whose request failed sends its next one


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that came, but not the one that was expected."""

    question: Question
    got: tuple[tuple[int, ...], ...]


@dataclass
class Outcomes:
    """What became of the requests."""

    num_requests: int = 0
    failures: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


class Load:
    """`run` ends when `num_requests` were answered or failed, or after `finish`.

    `address` names the master to ask; it is called before every request, as a balancer would choose.
    """

    def __init__(
        self, address: Callable[[], str], questions: Sequence[Question], num_requests: float, num_clients: int
    ) -> None:
        self._address = address
        self._questions = questions
        self._num_requests = num_requests
        self._num_clients = num_clients
        self._numbers = itertools.count()
        self._has_moved = asyncio.Condition()
        self._clients: dict[str, AsyncClient] = {}
        self.outcomes = Outcomes()

    async def run(self) -> Outcomes:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._num_clients):
                    tasks.create_task(self._ask_on())
        finally:
            for client in self._clients.values():
                await client.close()
        return self.outcomes

    def finish(self) -> None:
        """Begins no further request."""
        self._num_requests = 0

    async def reached(self, share: float) -> None:
        """Returns when this share of the requests is over."""
        async with self._has_moved:
            await self._has_moved.wait_for(lambda: self.outcomes.num_requests >= share * self._num_requests)

    async def _ask_on(self) -> None:
        while (number := next(self._numbers)) < self._num_requests:
            await self._ask(self._questions[number % len(self._questions)])
            async with self._has_moved:
                self.outcomes.num_requests += 1
                self._has_moved.notify_all()

    async def _ask(self, question: Question) -> None:
        asked = question.asked.salted(secrets.token_hex(8))
        got: list[list[int]] = [[] for _ in question.expected]
        try:
            async with self._client().stream(asked.prompt, timeout_s=REQUEST_TIMEOUT_S, **asked.options) as stream:
                async for delta in stream:
                    got[delta.index] += delta.token_ids
        except PdserveError as error:
            self.outcomes.failures.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(AFTER_FAILURE_S)
            return
        ids = tuple(tuple(sequence) for sequence in got)
        if ids != question.expected:
            self.outcomes.differences.append(Difference(question, ids))

    def _client(self) -> AsyncClient:
        address = self._address()
        if address not in self._clients:
            self._clients[address] = AsyncClient(address, retries=ONCE)
        return self._clients[address]
