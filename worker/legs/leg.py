"""A leg: what one master asked of this worker, and how far it got.

    QUEUED   --the engine admitted its run-->      RUNNING
    any      --finished, cancelled, failed-->      ENDING   --the engine released its run-->  forgotten

The master of one that is ending is told nothing more of it, but that it ended.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from protos.session_messages import ErrorCode, Failure, LegUpdate, Stage, Start
from worker.engines.compute_engine import Run
from worker.legs.cache_news import CacheNews


class LegPhase(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"


class Link(Protocol):
    """The way back to a master. The engine thread calls it; neither method blocks."""

    def deliver(self, updates: Items[LegUpdate], news: CacheNews | None) -> None: ...

    def deliver_cache_snapshot(self, hashes: Items[bytes]) -> None: ...


@dataclass(eq=False)
class Leg:
    """Only the engine thread writes to it."""

    start: Start
    link: Link
    run: Run
    arrived_s: float  # time.monotonic()
    stage: Stage = field(init=False)  # PREFILL turns to WHOLE when it is told to decode here
    pull_wait_s: float | None = None  # how long it may be queued; None: as long as it may take altogether
    phase: LegPhase = LegPhase.QUEUED
    admitted_s: float = 0.0  # time.monotonic()
    unfinished: set[int] = field(init=False)  # indexes of sequences

    def __post_init__(self) -> None:
        self.stage = self.start.stage
        self.unfinished = set(self.start.sequences)

    @property
    def can_hand_off(self) -> bool:
        """Whether a decode worker is to pull its KV."""
        return self.stage is Stage.PREFILL and self.run.num_left > 1

    @property
    def is_queued_pull(self) -> bool:
        return self.phase is LegPhase.QUEUED and self.stage is Stage.DECODE

    def overdue(self, now_s: float) -> Failure | None:
        """Why it ends now, unless it has time left."""
        waited_s = now_s - self.arrived_s
        if waited_s >= self.start.time_limit_s:
            return Failure(ErrorCode.DEADLINE_EXCEEDED, f"not finished within {self.start.time_limit_s:g} s")
        if self.pull_wait_s is not None and self.phase is LegPhase.QUEUED and waited_s >= self.pull_wait_s:
            return Failure(ErrorCode.RESOURCE_EXHAUSTED, f"no room to pull within {self.pull_wait_s:g} s")
        return None
