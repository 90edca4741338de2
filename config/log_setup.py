"""Where log lines go and how they look: stderr, one line per record, time first."""

import logging
import os
import sys
from enum import Enum

# gRPC's core writes lines of its own to stderr, about what is raised as an error anyway. It looks at this when it is
# imported, so this module has to be imported before it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


class LogLevel(Enum):
    DEBUG = logging.DEBUG
    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR


def log_to_stderr(level: LogLevel) -> None:
    """Sends records of `level` and above to stderr, replacing what was set up before; local time."""
    logging.basicConfig(stream=sys.stderr, level=level.value, format=FORMAT, datefmt=TIME_FORMAT, force=True)
    logging.getLogger("uvicorn").setLevel(max(level.value, logging.WARNING))  # its INFO is about itself
