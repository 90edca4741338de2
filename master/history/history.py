"""What a master remembers: its latest requests and figures, and the masters beside it."""

from dataclasses import dataclass

from master.history.log import RequestLog
from master.history.masters import Masters
from master.history.samples import Samples


@dataclass(frozen=True, slots=True)
class History:
    log: RequestLog
    samples: Samples
    masters: Masters
