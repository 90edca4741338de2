"""What another process of this machine has used so far."""

import os
import time
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RESIDENT_FIELD = 1  # of /proc/PID/statm, in pages


class ProcessUse:
    """`pid` is of a process that lives on."""

    def __init__(self, pid: int) -> None:
        # as pthread_getcpuclockid makes it: the process's number inverted, and 2 for the scheduler's clock
        self._clock = (~pid << 3) | 2
        self._statm = Path(f"/proc/{pid}/statm")

    def cpu_s(self) -> float:
        """All of its threads together."""
        return time.clock_gettime(self._clock)

    def resident_bytes(self) -> int:
        return int(self._statm.read_text().split()[RESIDENT_FIELD]) * PAGE_BYTES
