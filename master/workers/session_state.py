"""Where a session with a worker stands, and how long each of its waits may take."""

from dataclasses import dataclass
from enum import Enum

from protos.session_messages import REPORT_INTERVAL_S


class SessionState(Enum):
    CONNECTING = "connecting"
    REFUSED = "refused"
    OPEN = "open"
    QUIET = "quiet"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker may take: before it is lost, to greet a master that connects, before it gets nothing new."""

    silence_s: float
    connect_s: float = 3.0
    quiet_s: float = 2.5 * REPORT_INTERVAL_S  # two reports were missed
