"""The fault table as JSON and as the Markdown of docs/reliability.md."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults.fault import Fault
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
    """Failed requests of all by fault and layout, with each promise and the test that proves it."""
    by_name = {fault.name: fault for fault in faults}
    lines = [
        "| fault | workers | failed | different | near ties | promise | test |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fault = by_name[row.fault]
        lines.append(
            f"| {row.fault} | {row.layout} | {row.num_failed} of {row.num_requests} | {row.num_different} "
            f"| {row.num_near_ties} | {fault.promise} | `{fault.test}` |"
        )
    return "\n".join(lines)


def write_into(page: Path, table: str) -> None:
    """Replaces the table of a page. Raises ValueError when the page has no place for it."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the fault table: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
