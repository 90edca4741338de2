"""`scripts/faults`: runs the fault table, or the soak, against clusters of real processes on this machine."""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from config import checks
from config.flags import FlagError, fail, flag, parse
from tests.checkpoints import Family, make_checkpoint
from tests.faults.fault import Fault, Spare
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
        rows: list[Row] = []
        for row in _soaked(config, model) if config.soak_s > 0 else _tabled(config, model, other):
            print(line(row), *(f"        {text}" for text in (*row.failures, *row.problems)), sep="\n", flush=True)
            rows.append(row)
            _write(rows, config)
    return 0 if all(row.is_kept for row in rows) else 1


def _tabled(config: FaultsConfig, model: Path, other_model: Path) -> Iterator[Row]:
    runs = FaultRun(
        model, other_model, num_requests=config.requests, num_clients=config.clients, worker_flags=config.worker_flags
    )
    wanted = [fault for fault in FAULTS if _is_wanted(fault, config.only)]
    if not can_have_hosts():
        skipped = [fault.name for fault in wanted if fault.needs_hosts]
        print(f"skipped, as they take root and `ip` of the Debian package iproute2: {', '.join(skipped)}", flush=True)
        wanted = [fault for fault in wanted if not fault.needs_hosts]
    for spare in Spare:
        for fault in wanted:
            if spare in fault.layouts:
                yield runs.run(fault, spare)


def _soaked(config: FaultsConfig, model: Path) -> Iterator[Row]:
    yield soak(model, config.soak_s, num_clients=config.clients, seed=config.seed)


def _write(rows: list[Row], config: FaultsConfig) -> None:
    """Called after each row, so that a run which is ended early leaves what it has found."""
    if config.json is not None:
        config.json.write_text(to_json(rows))
    if config.docs:
        write_into(PAGE, to_markdown(rows, FAULTS))


def _is_wanted(fault: Fault, words: tuple[str, ...]) -> bool:
    return not words or any(word in fault.name for word in words)


if __name__ == "__main__":
    sys.exit(main())
