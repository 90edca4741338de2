"""What this master has running on one worker."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum

from protos.session_messages import (
    Cancel,
    DecodeHere,
    ErrorCode,
    Failure,
    LegUpdate,
    Stage,
    Start,
    ToWorker,
)

OnUpdate = Callable[["Leg", LegUpdate], None]


class Loss(Enum):
    """How a session ended under its legs."""

    CLOSED = "closed"  # the worker's process died, closed it, or says that its engine stands still
    SILENT = "silent"  # the worker hangs, or was cut off
    DRAINED = "drained"  # the worker was leaving


@dataclass(eq=False)
class Leg:
    """An attempt's part on one worker, from `SessionLegs.begin` to its last update or `end`. Methods return at once."""

    legs: "SessionLegs"
    start: Start
    on_update: OnUpdate
    uncached_tokens: int  # of the prompt, as far as the prefix index knows
    unfinished: set[int]  # sequences
    has_started: bool = False
    has_prefilled: bool = False  # or received the KV
    loss: Loss | None = None  # the session broke; what the worker did last is not known
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # the worker holds nothing for it any more, or is lost

    @property
    def number(self) -> int:
        return self.start.leg

    @property
    def worker(self) -> str:
        return self.legs.worker

    @property
    def is_lost(self) -> bool:
        return self.loss is not None

    def end(self) -> None:
        """Nobody wants the leg any more: cancel it unless it is over. Harmless twice."""
        self.legs.let_go(self, Cancel(self.number))

    def release(self) -> None:
        """The worker has done its part and needs no word about it."""
        self.legs.let_go(self)

    def cancel_sequence(self, sequence: int) -> None:
        self.legs.send(Cancel(self.number, sequence))

    def decode_here(self) -> None:
        self.legs.send(DecodeHere(self.number))


class SessionLegs:
    """The legs of one session: those that are wanted, and those that the worker may still hold blocks for."""

    def __init__(
        self,
        worker: str,
        send: Callable[[ToWorker], None],
        on_idle: Callable[[], None],
        on_load: Callable[[], None],
    ) -> None:
        """`on_idle` is called whenever none is wanted any more, `on_load` when what routing goes by may change."""
        self.worker = worker
        self.send = send
        self.newest = 0  # number of the latest leg ever
        self._on_idle = on_idle
        self._on_load = on_load
        self.num_unfinished = 0  # sequences that are wanted and go on
        self._wanted: dict[int, Leg] = {}
        self._leaving: dict[int, Leg] = {}
        # wanted ones by what they have not done yet: few of many, and routing asks for them with every request
        self._unstarted: dict[int, Leg] = {}
        self._prefilling: dict[int, Leg] = {}

    def __len__(self) -> int:
        """How many are wanted."""
        return len(self._wanted)

    @property
    def prefilling(self) -> Collection[Leg]:
        return self._prefilling.values()

    @property
    def unstarted(self) -> Collection[Leg]:
        """Those that no load report counts yet."""
        return self._unstarted.values()

    def of(self, request_id: str) -> list[Leg]:
        """Those for which the worker may hold something."""
        return [leg for leg in (*self._wanted.values(), *self._leaving.values()) if leg.start.request_id == request_id]

    def begin(self, start: Start, on_update: OnUpdate, uncached_tokens: int) -> Leg:
        """`on_update` gets every update, at last a failure if the session breaks."""
        leg = Leg(self, start, on_update, uncached_tokens, set(start.sequences))
        self._wanted[leg.number] = self._unstarted[leg.number] = leg
        if start.stage is not Stage.DECODE:
            self._prefilling[leg.number] = leg
        self.num_unfinished += len(leg.unfinished)
        self.newest = leg.number
        self._on_load()
        self.send(start)
        return leg

    def let_go(self, leg: Leg, last_word: ToWorker | None = None) -> None:
        """Nobody wants it any more; the last word is for the worker, unless it is over already."""
        if self._wanted.pop(leg.number, None) is None:
            return
        self._on_load()
        self._unstarted.pop(leg.number, None)
        self._prefilling.pop(leg.number, None)
        self.num_unfinished -= len(leg.unfinished)
        if not leg.ended.is_set():
            self._leaving[leg.number] = leg
        if last_word is not None:
            self.send(last_word)
        if not self._wanted:
            self._on_idle()

    def take(self, update: LegUpdate) -> None:
        """Passes on what the worker says of a leg; one that was let go is not told."""
        if update.ended:
            self._on_ended(update.leg)
        leg = self._wanted.get(update.leg)
        if leg is None:
            return
        self._note(leg, update)
        if update.failure is not None or not leg.unfinished:
            self.let_go(leg)
        leg.on_update(leg, update)

    def lose(self, message: str, loss: Loss) -> None:
        """The session broke: those that are wanted fail, and nothing is known of the others."""
        wanted, self._wanted = self._wanted, {}
        leaving, self._leaving = self._leaving, {}
        self._unstarted.clear()
        self._prefilling.clear()
        self.num_unfinished = 0
        self._on_load()
        for leg in (*wanted.values(), *leaving.values()):
            leg.ended.set()
        for leg in wanted.values():
            leg.loss = loss
            leg.on_update(leg, LegUpdate(leg.number, failure=Failure(ErrorCode.UNAVAILABLE, message)))

    def _note(self, leg: Leg, update: LegUpdate) -> None:
        """What the update says that routing goes by; usually nothing."""
        if update.started is not None:
            leg.has_started = True
            self._unstarted.pop(leg.number, None)
            self._on_load()
        if update.prefilled is not None or update.transferred is not None:
            leg.has_prefilled = True
            self._prefilling.pop(leg.number, None)
            self._on_load()
        for delta in update.deltas:
            if delta.finish_reason is not None and delta.sequence in leg.unfinished:
                leg.unfinished.discard(delta.sequence)
                self.num_unfinished -= 1
                self._on_load()

    def _on_ended(self, number: int) -> None:
        leg = self._leaving.pop(number, None) or self._wanted.get(number)
        if leg is not None:
            leg.ended.set()
