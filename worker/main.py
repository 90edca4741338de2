"""The command `pdserve-worker`."""

import logging
import os
import sys
from importlib.metadata import version
from typing import NoReturn

import uvloop

from config.address import free_of_wildcard
from config.daemon_thread import in_daemon_thread
from config.flags import FlagError, fail, parse
from config.log_setup import log_to_stderr
from serving.process_life import LeaveTimes, end_process, finished_before, live
from serving.stop_signal import StopSignal
from worker.config import WorkerConfig
from worker.faults.plan import FaultPlan

logger = logging.getLogger(__name__)

PROG = "pdserve-worker"


def main() -> None:
    """Exits with status 2 and one line naming the flag when it cannot start."""
    try:
        config = parse(
            WorkerConfig,
            sys.argv[1:],
            prog=PROG,
            description="Computes the stages of requests that its role allows, for every master that connects.",
            environ=os.environ,
            version=version("pdserve"),
        )
        log_to_stderr(config.log_level, config.log_format)
        uvloop.run(_run(config))
    except FlagError as error:
        fail(PROG, error)


async def _run(config: WorkerConfig) -> NoReturn:
    # An engine takes seconds to import; what is wrong with a flag should show at once.
    from worker.engines.compute_engine import ComputeEngine
    from worker.engines.table import chosen
    from worker.worker import Worker

    times = LeaveTimes(config.drain_timeout_s)
    stop = StopSignal(times.limit_s)
    advertise_host = config.advertise_host or free_of_wildcard(config.host)
    await config.check_advertised(advertise_host)
    faults = FaultPlan.parse(config.inject_faults)
    if config.inject_faults:
        logger.warning("faults are injected: %s", ", ".join(config.inject_faults))
    built: list[ComputeEngine] = []

    async def build() -> None:
        built.append(await in_daemon_thread(lambda: chosen(config.engine)(config, advertise_host, faults), "load"))

    if not await finished_before(build(), stop.wait()):
        logger.info("told to end while the model was loaded")
        end_process()  # whatever loads can't be told
    (engine,) = built
    await live(Worker(config, engine, faults), stop, times)
    end_process()


if __name__ == "__main__":
    main()
