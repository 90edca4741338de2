"""`pdserve status`: the cluster as its master sees it, once or live."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client.errors import PdserveError
from client.results import ClusterInfo, InstanceInfo
from client.retries import RetryPolicy
from client.sync_client import Client

TIMEOUT_S = 5.0
REFRESH_S = 1.0
PIPED_WIDTH = 200  # characters; without a terminal rich would squeeze the table into 80

EXIT_OK = 0
EXIT_UNREACHABLE = 2

COLUMNS = (
    "instance",
    "role",
    "state",
    "address",
    "queued",
    "running",
    "blocks held/total",
    "cached",
    "legs",
    "circuit",
)
TRANSFER_COLUMNS = ("sent", "received", "skipped", "MiB in", "failures")


def run_status(address: str, watch: bool, ca_file: Path | None = None) -> int:
    """Prints a table of the instances; with `watch` again and again until Ctrl-C. Returns the exit code."""
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    try:
        with Client(address, timeout_s=TIMEOUT_S, retries=RetryPolicy(max_attempts=1), ca_file=ca_file) as client:
            table = cluster_table(client.cluster())
            if watch:
                _watch(client, console, table)
            else:
                console.print(table)
    except (PdserveError, ValueError, OSError) as error:
        print(f"pdserve status: no answer from the master at {address}: {one_line(error)}", file=sys.stderr)
        return EXIT_UNREACHABLE
    return EXIT_OK


def _watch(client: Client, console: Console, table: Table) -> None:
    """Once it has begun, a master that does not answer is waited for: it may be restarting."""
    try:
        with Live(table, console=console, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                try:
                    table = cluster_table(client.cluster())
                except PdserveError as error:
                    table.caption = Text(f"no answer from the master: {one_line(error)}")
                live.update(table, refresh=True)
    except KeyboardInterrupt:
        return


def cluster_table(cluster: ClusterInfo) -> Table:
    """One row an instance; below it whether requests are served, and why instances are not used."""
    lines = ["ready" if cluster.is_ready else f"not ready: {cluster.not_ready_reason}"]
    lines += [f"{instance.name}: {instance.trouble}" for instance in cluster if instance.trouble is not None]
    lines += [f"{one.name} gets no KV from {', '.join(one.cut_from)}" for one in cluster if one.cut_from]
    # as Text, since rich would read brackets in names and reasons as markup
    table = Table(caption=Text("\n".join(lines)))
    for name in (*COLUMNS, *TRANSFER_COLUMNS):
        table.add_column(name)
    for instance in sorted(cluster, key=lambda instance: (instance.role.name, instance.name)):
        table.add_row(*map(Text, _row(instance)))
    return table


def _row(instance: InstanceInfo) -> tuple[str, ...]:
    load, transfer = instance.load, instance.load.transfer
    return (
        instance.name,
        instance.role.name,
        instance.state,
        instance.address,
        str(load.queued_requests),
        str(load.running_sequences),
        f"{load.held_blocks}/{instance.num_blocks}",
        str(instance.cached_blocks_known),
        str(instance.legs_in_flight),
        instance.circuit,
        str(transfer.blocks_sent),
        str(transfer.blocks_received),
        str(transfer.blocks_skipped),
        f"{transfer.bytes_received / 2**20:.1f}",
        str(transfer.failures),
    )


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
