"""A connection to the transfer port whose claim has not arrived. Nothing here blocks."""

import contextlib
import socket

from kvcache.transfer.frames import HEADER_BYTES, MAGIC, FrameError, FrameType, Header
from kvcache.transfer.payloads import CLAIM_BYTES, Claim
from kvcache.transfer.refusal import Refusal

_WHOLE_BYTES = HEADER_BYTES + CLAIM_BYTES
_MAX_UNREAD_BYTES = 4096


class PendingConnection:
    """Owns `stream` until `hand_over` or `close`. `deadline` is on the monotonic clock."""

    def __init__(self, stream: socket.socket, peer: str, deadline: float) -> None:
        self.peer = peer
        self.deadline = deadline
        self._stream = stream
        self._received = bytearray()

    def fileno(self) -> int:
        """-1 when it is closed."""
        return self._stream.fileno()

    def read_claim(self) -> Claim | None:
        """Returns the claim, or None while more of it is to come.

        Raises OSError, and FrameError as soon as it cannot become a claim.
        """
        try:
            data = self._stream.recv(_WHOLE_BYTES - len(self._received))
        except BlockingIOError:
            return None
        if not data:
            raise FrameError("closed before its claim")
        self._received += data
        return _parse_claim(self._received)

    def refuse(self, refusal: Refusal) -> None:
        """Says why, as far as that is possible without waiting, and closes."""
        with contextlib.suppress(OSError):
            self._stream.send(refusal.frame(FrameType.REFUSE).pack())
            self._stream.shutdown(socket.SHUT_WR)
            self._stream.recv(_MAX_UNREAD_BYTES)  # to close with unread input would take the answer back
        self.close()

    def hand_over(self) -> socket.socket:
        """Returns the socket, which is the caller's from now on."""
        return self._stream

    def close(self) -> None:
        self._stream.close()


def _parse_claim(received: bytearray) -> Claim | None:
    if not MAGIC.startswith(received[: len(MAGIC)]):
        raise FrameError("not this protocol")
    if len(received) < HEADER_BYTES:
        return None
    header = Header.parse(received[:HEADER_BYTES])
    if header.type is not FrameType.CLAIM or header.payload_bytes != CLAIM_BYTES:
        raise FrameError(f"{header.type.name} of {header.payload_bytes} bytes instead of a claim")
    if len(received) < _WHOLE_BYTES:
        return None
    payload = bytes(received[HEADER_BYTES:])
    header.check(payload)
    return Claim.parse(payload)
