"""Why a puller gets nothing, or nothing more: the payload of REFUSE and ABORT."""

import struct
from dataclasses import dataclass

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.export import ExportEnd, ReleaseReason
from kvcache.transfer.frames import MAX_TEXT_BYTES, Frame, FrameError, FrameType

_REASON = struct.Struct("!B")


@dataclass(frozen=True)
class Refusal:
    reason: TransferFailure
    text: str

    @classmethod
    def of_ended(cls, end: ExportEnd) -> "Refusal":
        """Says what a puller is told about an export that has ended."""
        if end.reason is ReleaseReason.EXPIRED:
            return cls(TransferFailure.EXPIRED, end.text)
        if end.reason is ReleaseReason.ABORTED:
            return cls(TransferFailure.ABORTED, end.text)
        if end.reason is ReleaseReason.ACKNOWLEDGED:
            return cls(TransferFailure.REFUSED, "hand-off was acknowledged before")
        return cls(TransferFailure.REFUSED, "unknown hand-off")

    def frame(self, frame_type: FrameType) -> Frame:
        text = self.text.encode(errors="replace")[:MAX_TEXT_BYTES]
        return Frame(frame_type, _REASON.pack(self.reason) + text)

    @classmethod
    def parse(cls, payload: bytes) -> "Refusal":
        """Raises FrameError for bytes that say nothing sensible."""
        try:
            reason = TransferFailure(payload[0])
        except (IndexError, ValueError):
            raise FrameError("refusal without a reason") from None
        return cls(reason, payload[1:].decode(errors="replace"))
