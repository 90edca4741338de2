"""Why a transfer ended without its KV. No error here is ever followed by use of the blocks received so far."""

from enum import IntEnum


class TransferFailure(IntEnum):
    """The numbers are part of the wire format."""

    UNREACHABLE = 1
    """No connection to the address could be made, or no transport reaches from there to here."""
    REFUSED = 2
    """The peer knows no such hand-off (wrong token, leg or epoch, or it is over), or has no room."""
    LAYOUT_MISMATCH = 3
    """The peer's blocks have another shape, type or model."""
    CORRUPT = 4
    """A checksum or the framing was wrong, or the peer's blocks are not those of the prompt."""
    PEER_CLOSED = 5
    """The connection ended before the hand-off did."""
    TIMEOUT = 6
    """The peer was silent for longer than it may be."""
    EXPIRED = 7
    """The peer's lease ended and its blocks may hold something else by now."""
    ABORTED = 8
    """The peer ended the hand-off; the text is its reason."""
    CANCELLED = 9
    """`cancel` was called on this side."""
    BROKEN = 10
    """This side could not go on, for want of descriptors or by a fault of ours."""
    OTHER_VERSION = 11
    """The peer speaks another version of the transfer protocol."""


_CUT_OFF = (TransferFailure.UNREACHABLE, TransferFailure.PEER_CLOSED, TransferFailure.TIMEOUT)


class TransferError(Exception):
    def __init__(self, reason: TransferFailure, text: str) -> None:
        super().__init__(f"{reason.name}: {text}")
        self.reason = reason
        self.text = text

    @property
    def is_cut_off(self) -> bool:
        """Whether the two workers cannot talk to each other now: no connection is had, or none lasts."""
        return self.reason in _CUT_OFF
