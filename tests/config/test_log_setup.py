import re
import subprocess
import sys

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
