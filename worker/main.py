"""The command `pdserve-worker`."""

import asyncio
import logging
import os
import sys
from importlib.metadata import version

import uvloop

from config.address import free_of_wildcard
from config.flags import FlagError, fail, parse
from config.log_setup import log_to_stderr
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
        log_to_stderr(config.log_level)
        uvloop.run(_run(config))
    except FlagError as error:
        fail(PROG, error)


async def _run(config: WorkerConfig) -> None:
    # torch and transformers take seconds to import; what is wrong with a flag should show at once.
    from worker.engines.torch.assembly import assemble
    from worker.worker import Worker

    stop = StopSignal()
    advertise_host = config.advertise_host or free_of_wildcard(config.host)
    faults = FaultPlan.parse(config.inject_faults)
    if config.inject_faults:
        logger.warning("faults are injected: %s", ", ".join(config.inject_faults))
    engine = await asyncio.to_thread(assemble, config, advertise_host, faults)
    await Worker(config, engine, faults).run(stop)


if __name__ == "__main__":
    main()
