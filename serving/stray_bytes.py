"""What comes to an HTTP port and is no HTTP."""

import logging
import time
from collections.abc import Callable

from serving.source_log import SourceLog

logger = logging.getLogger(__name__)

TLS_HELLO = b"\x16\x03"


class StrayBytes:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._log = SourceLog(logger, now)

    def note(self, source: str, data: bytes) -> None:
        """`source` is a host; `data` is what it sent, from its beginning."""
        what = "a TLS hello to a port without TLS" if data.startswith(TLS_HELLO) else f"no HTTP: {data[:20]!r}"
        self._log.warning(source, f"sent {what}")
