"""`scripts/faults`: runs the fault table, or the soak, against clusters of real processes on this machine."""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from config import checks
from config.flags import FlagError, fail, flag, parse
from tests.checkpoints import Family, make_checkpoint
from tests.faults.fault import Fault
from tests.faults.hosts import can_have_hosts
from tests.faults.report import line, to_json, to_markdown, write_into
from tests.faults.run import FaultRun, Row
from tests.faults.soak import soak
from tests.faults.table import FAULTS

PROG = "scripts/faults"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@dataclass(frozen=True)
class FaultsConfig:
    only: tuple[str, ...] = flag((), "Faults whose name has one of these words", group="What")
    requests: int = flag(800, "Streaming requests for each fault", group="Load", check=checks.at_least(8))
    clients: int = flag(8, "Clients that send them", group="Load", check=checks.at_least(1))
    worker_flags: tuple[str, ...] = flag((), "More flags for every worker, such as --batch_invariant", group="Load")
    soak_s: float = flag(0.0, "Instead of the table: kill at random for so long", group="What", unit="s")
    seed: int = flag(0, "Seed of the soak's kills", group="What")
    json: Path | None = flag(None, "Write the rows to this file", group="Output")
    docs: bool = flag(False, "Write the table into docs/reliability.md", group="Output")


def main() -> int:
    """Returns 1 when a promise was not kept."""
    try:
        config = parse(FaultsConfig, sys.argv[1:], prog=PROG, description=__doc__ or "", environ={}, version="")
    except FlagError as error:
        fail(PROG, error)
    with tempfile.TemporaryDirectory(prefix="pdserve-faults-") as folder:
        model = make_checkpoint(Path(folder) / "tiny-llama", Family.LLAMA, 0)
        other = make_checkpoint(Path(folder) / "other" / model.name, Family.LLAMA, 1)
        rows = list(_soaked(config, model) if config.soak_s > 0 else _tabled(config, model, other))
    if config.json is not None:
        config.json.write_text(to_json(rows))
    if config.docs:
        write_into(PAGE, to_markdown(rows, FAULTS))
    return 0 if all(row.is_kept for row in rows) else 1


def _tabled(config: FaultsConfig, model: Path, other_model: Path) -> Iterator[Row]:
    runs = FaultRun(
        model, other_model, num_requests=config.requests, num_clients=config.clients, worker_flags=config.worker_flags
    )
    for fault in FAULTS:
        if not _is_wanted(fault, config.only):
            continue
        if fault.needs_hosts and not can_have_hosts():
            print(f"skipped {fault.name}: it takes root, and `ip` of the Debian package iproute2", flush=True)
            continue
        for spare in fault.layouts:
            yield _shown(runs.run(fault, spare))


def _soaked(config: FaultsConfig, model: Path) -> Iterator[Row]:
    yield _shown(soak(model, config.soak_s, num_clients=config.clients, seed=config.seed))


def _shown(row: Row) -> Row:
    print(line(row), *(f"        {text}" for text in (*row.failures, *row.problems)), sep="\n", flush=True)
    return row


def _is_wanted(fault: Fault, words: tuple[str, ...]) -> bool:
    return not words or any(word in fault.name for word in words)


if __name__ == "__main__":
    sys.exit(main())
