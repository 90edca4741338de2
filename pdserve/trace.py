"""`pdserve trace ID`: a request's timeline, from a master that ran it."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from client.errors import NotFound, PdserveError
from client.results import RequestStory, Span
from client.retries import RetryPolicy
from client.sync_client import Client
from pdserve.status import EXIT_OK, EXIT_UNREACHABLE, PIPED_WIDTH, TIMEOUT_S, one_line

EXIT_UNKNOWN = 1
BAR_WIDTH = 40  # characters
FULL, PART = "█", "▏"


def run_trace(address: str, name: str, ca_file: Path | None = None) -> int:
    """Returns the exit code: 1 when the master remembers no such request, 2 when it does not answer."""
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    try:
        with Client(address, timeout_s=TIMEOUT_S, retries=RetryPolicy(max_attempts=1), ca_file=ca_file) as client:
            for story in client.trace(name):
                console.print(story_table(story))
    except NotFound as error:
        print(f"pdserve trace: {one_line(error)}", file=sys.stderr)
        return EXIT_UNKNOWN
    except (PdserveError, ValueError, OSError) as error:
        print(f"pdserve trace: no answer from the master at {address}: {one_line(error)}", file=sys.stderr)
        return EXIT_UNREACHABLE
    return EXIT_OK


def story_table(story: RequestStory) -> Table:
    """A bar for each part of it, and below what became of it."""
    table = Table(title=Text(f"{story.answer_id} {story.name}".strip()), caption=Text("\n".join(_facts(story))))
    for title in ("part", "instance", "began", "took", "", "why it ended"):
        table.add_column(title)
    for span in story.spans:
        part = f"attempt {span.attempt}" if span.name == "attempt" else f"  {span.name}"
        cells = (part, span.instance, f"{span.start_s:.3f} s", f"{span.duration_s:.3f} s")
        table.add_row(*map(Text, (*cells, _bar(span, story.timeline.total_s), span.detail)))
    return table


def _bar(span: Span, total_s: float) -> str:
    scale = BAR_WIDTH / max(total_s, 1e-9)
    begin = min(round(span.start_s * scale), BAR_WIDTH - 1)
    return " " * begin + (FULL * round(span.duration_s * scale) or PART)


def _facts(story: RequestStory) -> list[str]:
    ended = ", ".join(filter(None, (story.outcome, *story.finish_reasons, story.error, story.message)))
    arrived = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(story.arrived_unix_s))
    tokens = f"{story.prompt_tokens} prompt tokens ({story.cached_tokens} cached), {story.completion_tokens} generated"
    timeline = story.timeline
    times = f"TTFT {timeline.first_token_s:.3f} s, whole {timeline.total_s:.3f} s, attempts {timeline.attempts}"
    return [f"{story.model}, arrived {arrived}: {ended}", f"{tokens}; {times}"]
