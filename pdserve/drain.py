"""`pdserve drain NAME`: an instance finishes what it has and takes nothing new."""

import sys
from pathlib import Path

from client.errors import NotFound, PdserveError
from client.retries import RetryPolicy
from client.sync_client import Client
from pdserve.status import EXIT_OK, EXIT_UNREACHABLE, TIMEOUT_S, one_line

EXIT_UNKNOWN = 1


def run_drain(address: str, name: str, ca_file: Path | None = None) -> int:
    """Returns the exit code: 1 when there is no such instance, 2 when the master did not do it."""
    try:
        with Client(address, timeout_s=TIMEOUT_S, retries=RetryPolicy(max_attempts=1), ca_file=ca_file) as client:
            client.drain(name)
    except NotFound as error:
        print(f"pdserve drain: {one_line(error)}", file=sys.stderr)
        return EXIT_UNKNOWN
    except (PdserveError, ValueError, OSError) as error:
        print(f"pdserve drain: the master at {address} did not do it: {one_line(error)}", file=sys.stderr)
        return EXIT_UNREACHABLE
    print(f"{name} drains: `pdserve status` shows how far it is")
    return EXIT_OK
