"""The requests that this master runs, found by the ids that their clients know, so that they can be cancelled."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from master.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class ClientName:
    """What a client calls its request. `client` tells clients apart: the same name of another is another request's."""

    client: str
    name: str


@dataclass(eq=False)
class RunningRequest:
    """One request in flight, from its admission until its generator is closed."""

    request: GenerationRequest
    running: "asyncio.Task[None]"  # its attempts
    is_cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        """Ends its attempts now, even if nobody takes its outputs. Harmless twice."""
        self.is_cancelled = True
        self.running.cancel()


class RunningRequests:
    def __init__(self) -> None:
        self._by_id: dict[str | ClientName, list[RunningRequest]] = {}

    def __len__(self) -> int:
        return len({entry for entries in self._by_id.values() for entry in entries})

    @contextmanager
    def hold(self, request: GenerationRequest, running: "asyncio.Task[None]") -> Iterator[RunningRequest]:
        """Keeps it here under its own id, its answer's and its client's name, which several requests may share."""
        entry = RunningRequest(request, running)
        names: set[str | ClientName] = {request.id, request.answer_id or request.id}
        if request.name:
            names.add(ClientName(request.client, request.name))
        for name in names:
            self._by_id.setdefault(name, []).append(entry)
        try:
            yield entry
        finally:
            for name in names:
                self._by_id[name].remove(entry)
                if not self._by_id[name]:
                    del self._by_id[name]
            entry.ended.set()

    def find(self, name: str, client: str) -> list[RunningRequest]:
        """Those with exactly this id, or those that this client calls so."""
        return [*(self._by_id.get(name) or self._by_id.get(ClientName(client, name)) or ())]
