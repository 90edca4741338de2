import json
import re
import subprocess
import sys
from datetime import UTC, datetime

PROGRAM = """
import logging
from config.log_setup import LogLevel, log_to_stderr
log_to_stderr(LogLevel.DEBUG)
log_to_stderr(LogLevel.INFO)
logger = logging.getLogger("worker.engines.torch.engine")
logger.debug("hidden")
logger.info("request %s: \\udcff", "r-1")
"""


def test_records_go_to_stderr_once_with_time_level_and_name() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO worker\.engines\.torch\.engine: request r-1: \\udcff\n"
    assert re.fullmatch(line, done.stderr)


JSON_PROGRAM = """
import logging
from config.log_setup import LogFormat, LogLevel, log_to_stderr
log_to_stderr(LogLevel.INFO, LogFormat.JSON)
logger = logging.getLogger("master.dispatch.request_run")
logger.info("req-0123456789abcdef: trying again:\\n%s", "two lines")
try:
    raise ValueError("broken")
except ValueError:
    logger.exception("%s: a bug", "chatcmpl-req-0a")
logger.info("worker decode-0: connected")
"""


def test_as_json_a_line_about_a_request_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", JSON_PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    first, second, third = (json.loads(line) for line in done.stderr.splitlines())
    assert first["request"] == "req-0123456789abcdef" and first["message"].endswith("again:\ntwo lines")
    assert (first["level"], first["logger"]) == ("INFO", "master.dispatch.request_run")
    assert datetime.fromisoformat(first["time"]).tzinfo is UTC
    assert second["request"] == "chatcmpl-req-0a" and "ValueError: broken" in second["exception"]
    assert "request" not in third and "exception" not in third
