"""Which requests may be what kills their workers.

A request is a suspect from the moment a worker is lost under it until it has a few new tokens elsewhere, or its end.
A request that crashes or stalls whatever runs it does so again before that, as it comes to the same tokens. On each
worker at most one suspect runs at a time, so when a worker is lost under a suspect, both losses have only this request
in common, and it ends. Suspects wait for such a place `ISOLATION_S` at most, which bounds the pause when many
streams have lost their worker at once.

What does not count as a loss: a worker that was draining, one that fell silent before it began with the request (it was
cut off, not killed), and an attempt that had begun before the loss that made the request a suspect.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

CLEARED_TOKENS = 3  # the first may come from a prefill, and what crashes in decoding needs another
ISOLATION_S = 5.0


@dataclass(slots=True)
class _Suspicion:
    since_s: float
    num_tokens: int  # that the request had then
    hosts: list[str] = field(default_factory=list)


class Suspects:
    def __init__(self) -> None:
        self._suspicions: dict[str, _Suspicion] = {}  # by request

    def __len__(self) -> int:
        return len(self._suspicions)

    def lost(self, request: str, began_s: float, now_s: float, num_tokens: int) -> bool:
        """A worker was lost under an attempt that began at `began_s`. True if the request has to end for it."""
        suspicion = self._suspicions.get(request)
        if suspicion is None:
            self._suspicions[request] = _Suspicion(now_s, num_tokens)
            return False
        return began_s >= suspicion.since_s

    def isolated_until_s(self, request: str) -> float | None:
        """Until when the request should run only on workers without another suspect; None if it is none."""
        suspicion = self._suspicions.get(request)
        return None if suspicion is None else suspicion.since_s + ISOLATION_S

    def to_avoid(self, request: str, now_s: float) -> Collection[str]:
        """Workers on which another suspect runs, as long as the request is to keep away from them."""
        until_s = self.isolated_until_s(request)
        if until_s is None or now_s >= until_s:
            return ()
        others = (suspicion for name, suspicion in self._suspicions.items() if name != request)
        return {host for suspicion in others for host in suspicion.hosts}

    def begin(self, request: str, worker: str) -> None:
        if request in self._suspicions:
            self._suspicions[request].hosts.append(worker)

    def end(self, request: str, worker: str) -> bool:
        """A leg is over. True if that gives another suspect a place."""
        suspicion = self._suspicions.get(request)
        if suspicion is None or worker not in suspicion.hosts:
            return False
        suspicion.hosts.remove(worker)
        return True

    def progressed(self, request: str, num_tokens: int) -> bool:
        """The request has so many tokens now. True if that clears it."""
        suspicion = self._suspicions.get(request)
        if suspicion is None or num_tokens < suspicion.num_tokens + CLEARED_TOKENS:
            return False
        return self.clear(request)

    def clear(self, request: str) -> bool:
        """The request is innocent, or over. True if it was a suspect."""
        return self._suspicions.pop(request, None) is not None
