"""How the bytes of offered blocks get from the prefill side to the decode side.

A sender lives on P and is done with a batch when `send` returns, except where it only tells addresses: those stay
readable until D's ACK or the end of the lease, which is why D may not use anything before RELEASED.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class TransportKind(IntEnum):
    """The numbers are part of the wire format, bits of a byte in HELLO."""

    TCP = 1
    VM_READ = 2


@dataclass(frozen=True)
class BlockBatch:
    """`blocks` of P's pool hold the prompt's blocks from index `first` on; all of them final and pinned."""

    first: int
    blocks: Sequence[int]


class BlockSender(Protocol):
    def send(self, batch: BlockBatch) -> int:
        """Offers the batch to D; returns the bytes it stands for. Raises TransferError."""


class BlockReceiver(Protocol):
    def receive(self, addresses: Sequence[int] | None, landing: Sequence[memoryview]) -> None:
        """Fills `landing` with the blocks offered last. Nothing writes there once this returned or raised.

        Raises TransferError.
        """
