"""The fault table as JSON and as the Markdown of docs/reliability.md."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults.fault import Fault, Spare
from tests.faults.run import Row

BEGIN, END = "<!-- fault table: scripts/faults --docs -->", "<!-- end of fault table -->"


def to_json(rows: Sequence[Row]) -> str:
    return json.dumps([asdict(row) | {"is_kept": row.is_kept} for row in rows], indent=2)


def line(row: Row) -> str:
    """One row for the terminal."""
    verdict = "kept" if row.is_kept else "BROKEN"
    what = (
        f"{row.num_failed} of {row.num_requests} failed, {row.num_different} different, {row.num_near_ties} near ties"
    )
    return f"{verdict:6}  {row.fault} [{row.layout}]: {what}, {row.duration_s:g} s"


def to_markdown(rows: Sequence[Row], faults: Sequence[Fault]) -> str:
    """Failed requests by fault, with each promise and the test that proves it."""
    cells = {(row.fault, row.spare): _cell(row) for row in rows}
    lines = [
        f"| fault | {Spare.YES.value} | {Spare.NO.value} | promise | test |",
        "|---|---|---|---|---|",
    ]
    for fault in faults:
        shown = [cells.get((fault.name, spare.value), "") for spare in Spare]
        if any(shown):
            lines.append(f"| {fault.name} | {' | '.join(shown)} | {fault.promise} | `{fault.test}` |")
    num_near_ties, num_requests = sum(row.num_near_ties for row in rows), sum(row.num_requests for row in rows)
    return "\n".join([*lines, "", f"Near ties: {num_near_ties} of {num_requests} answers."])


def _cell(row: Row) -> str:
    failed = f"{row.num_failed} of {row.num_requests}"
    return failed if row.num_different == 0 else f"{failed}, {row.num_different} different"


def write_into(page: Path, table: str) -> None:
    """Replaces the table of a page. Raises ValueError when the page has no place for it."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the fault table: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
