"""`python -m tests.stalling_worker`: a worker whose engine stands still for as long as the file $STALL_FILE exists."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from worker.engines.torch.runner import ModelRunner, StepLogits
from worker.engines.torch.scheduler import Chunk
from worker.main import main

STALL_FILE = Path(os.environ["STALL_FILE"])
POLL_S = 0.02

compute = ModelRunner.step


def step(runner: ModelRunner, chunks: Sequence[Chunk]) -> StepLogits:
    while STALL_FILE.exists():
        time.sleep(POLL_S)
    return compute(runner, chunks)


if __name__ == "__main__":
    ModelRunner.step = step  # type: ignore[method-assign,assignment]
    main()
