"""How the bytes of blocks get from the prefill side (P) to the decode side (D): what a transport has to be.

A sender lives on P and is done with a batch when `send` returns, except where D reads by itself: then the blocks stay
as they are until D's ACK or the end of the lease, which is why D may not use anything before RELEASED.

A new transport is one file beside this one and a line in `table`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcache.transfer.channel import Channel
from kvcache.transfer.registered_memory import RegisteredMemory


@dataclass(frozen=True)
class BlockBatch:
    """`blocks` of P's pool hold the prompt's blocks from index `first` on; all of them final and pinned."""

    first: int
    blocks: Sequence[int]


class BlockSender(Protocol):
    def send(self, batch: BlockBatch) -> int:
        """Sends a BLOCKS frame, and what goes with it; returns the bytes it stands for. Raises TransferError."""


class BlockReceiver(Protocol):
    def receive(self, told: bytes, landing: Sequence[memoryview]) -> None:
        """Fills `landing` with the blocks of the frame that `told` this.

        Nothing writes there once this returned or raised. Raises TransferError, and FrameError for nonsense.
        """


class Transport(Protocol):
    """One way of moving blocks, used by many pulls at once and from any thread.

    `name` is what flags and metrics call it, `kind` (0 to 63) what it is called on the wire. Where D reads by itself
    (`is_one_sided`) a wrong checksum may only mean that P gave the block away, and asking again tells.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> int: ...

    @property
    def is_one_sided(self) -> bool: ...

    def offer(self, memory: RegisteredMemory) -> bytes | None:
        """On P: what D needs to know to use it; None where it cannot serve this memory."""

    def can_use(self, offer: bytes, memory: RegisteredMemory) -> bool:
        """On D: whether blocks of whoever made the offer can be had this way. Raises FrameError for nonsense."""

    def sender(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> BlockSender:
        """On P: `timeout_s` is for one batch."""

    def receiver(
        self, channel: Channel, offer: bytes, memory: RegisteredMemory, silence_timeout_s: float
    ) -> BlockReceiver:
        """On D: `offer` is one that `can_use` agreed to."""
