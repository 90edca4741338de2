"""The command `pdserve-master`."""

import os
import sys
from importlib.metadata import version
from typing import NoReturn

import uvloop

from config.flags import FlagError, fail, parse
from config.log_setup import log_to_stderr
from master.config import MasterConfig
from master.master import Master
from serving.process_life import LeaveTimes, end_process, live
from serving.stop_signal import StopSignal

PROG = "pdserve-master"


def main() -> None:
    """Exits with status 2 and one line naming the flag when it cannot start."""
    try:
        config = parse(
            MasterConfig,
            sys.argv[1:],
            prog=PROG,
            description="Takes requests over HTTP and gRPC and has workers serve them.",
            environ=os.environ,
            version=version("pdserve"),
        )
        log_to_stderr(config.log_level, config.log_format)
        uvloop.run(_run(config))
    except FlagError as error:
        fail(PROG, error)


async def _run(config: MasterConfig) -> NoReturn:
    master = Master(config)
    times = LeaveTimes(config.drain_timeout_s, config.lame_duck_s)
    await live(master, StopSignal(times.limit_s), times)
    end_process()


if __name__ == "__main__":
    main()
