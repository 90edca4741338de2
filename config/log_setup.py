"""Where log lines go and how they look: stderr, one line per record, time first."""

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from enum import Enum

# gRPC's core writes lines of its own to stderr, about what is raised as an error anyway. It looks at this when it is
# imported, so this module has to be imported before it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
# How a line about a request begins: its id, or that of its answer.
REQUEST_ID = re.compile(r"'?((?:[a-z]+[-_])?req-[0-9a-f]+)'?: ")


class LogLevel(Enum):
    DEBUG = logging.DEBUG
    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`; `request` and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        found = REQUEST_ID.match(message)
        if found is not None:
            line["request"] = found[1]
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: LogLevel, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Sends records of `level` and above to stderr, replacing what was set up before; text has local time."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(FORMAT, TIME_FORMAT))
    logging.basicConfig(level=level.value, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(level.value, logging.WARNING))  # its INFO is about itself
