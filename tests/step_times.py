"""What --batch_invariant costs: CPU time of single steps with and without it, as a table of docs/benchmarks.md.

    .venv/bin/python -m tests.step_times FOLDER

One thread, and each time is the least of some alternating tries, so that what else runs on the machine matters little.
"""

import sys
import time
from pathlib import Path

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.loaded_model import LoadedModel
from worker.engines.torch.loader import load_model
from worker.engines.torch.paged_forward import PagedForward, Part
from worker.engines.torch.row_blocks import RowBlocks, find_num_rows

BLOCK_SIZE = 16
PROMPT = 256  # tokens
NUM_TRIES = 5


def step_times(loaded: LoadedModel, num_rows: int) -> dict[str, tuple[float, float]]:
    """(seconds plain, seconds batch-invariant) by what is computed."""
    generator = torch.Generator().manual_seed(0)
    ids: list[int] = torch.randint(loaded.vocab_size, (PROMPT,), generator=generator).tolist()
    lane = PROMPT // BLOCK_SIZE
    memory = PoolMemory(loaded.layout(BLOCK_SIZE), 8 * lane)
    prompt = Part(ids, 0, range(lane), range(PROMPT - 1, PROMPT), first_position=0)
    decodes = [
        Part(ids[-1:], PROMPT - 1, range(index * lane, (index + 1) * lane), range(1), first_position=PROMPT - 1)
        for index in range(8)
    ]
    steps = {f"a prompt of {PROMPT} tokens": [prompt], "one decode": decodes[:1], "8 decodes": decodes}
    forwards = (PagedForward(loaded.network, memory), RowBlocks(loaded, memory, num_rows))
    tries = {
        name: [[_time(forward, parts) for forward in forwards] for _ in range(NUM_TRIES)]
        for name, parts in steps.items()
    }
    return {name: (min(plain for plain, _ in pairs), min(fixed for _, fixed in pairs)) for name, pairs in tries.items()}


def _time(forward: PagedForward | RowBlocks, parts: list[Part]) -> float:
    started_s = time.process_time()
    forward.run(parts)
    return time.process_time() - started_s


def main() -> None:
    torch.set_num_threads(1)
    loaded = load_model(Path(sys.argv[1]), torch.device("cpu"), "auto")
    num_rows = find_num_rows(loaded)
    print(f"| step | plain, ms | batch-invariant (blocks of {num_rows} rows), ms | ratio |\n|---|---|---|---|")
    for name, (plain_s, fixed_s) in step_times(loaded, num_rows).items():
        print(f"| {name} | {plain_s * 1e3:.0f} | {fixed_s * 1e3:.0f} | {fixed_s / plain_s:.2f} |")


if __name__ == "__main__":
    main()
