"""A model that fails when it is asked to."""

import dataclasses
import time
from collections.abc import Sequence as Items

import torch

from worker.engines.torch.runner import StepLogits, StepRunner
from worker.engines.torch.scheduler import Chunk
from worker.faults.plan import Action, FaultPoint


class FaultyRunner:
    """Runs the steps of `runner`, with faults."""

    def __init__(self, runner: StepRunner, point: FaultPoint) -> None:
        self._runner = runner
        self._point = point

    def step(self, chunks: Items[Chunk]) -> StepLogits:
        faults = self._point.passing()
        for fault in faults:
            if fault.action is Action.DELAY:
                time.sleep(fault.seconds)
            elif fault.action is Action.RAISE:
                raise RuntimeError("a fault that was asked for")
        logits = self._runner.step(chunks)
        if any(fault.action is Action.NAN for fault in faults):
            return dataclasses.replace(logits, last=torch.full_like(logits.last, torch.nan))
        return logits

    def copy_block(self, source: int, destination: int) -> None:
        self._runner.copy_block(source, destination)
