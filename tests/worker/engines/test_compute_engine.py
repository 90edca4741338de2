"""The seam between the worker and the engine that computes for it."""

import subprocess
import sys

from tests.worker.engines.torch.engine_rig import Node
from worker.engines.compute_engine import ComputeEngine


def test_the_native_engine_is_one_that_fits(llama: Node) -> None:
    engine: ComputeEngine = llama.engine
    assert engine.limits.max_num_seqs > 0 and len(engine.identity.layout_fingerprint) == 16


def test_what_masters_ask_of_a_worker_needs_no_torch() -> None:
    """Another process, for this one has it loaded."""
    program = "import sys, worker.legs.leg_life, worker.session_service, worker.metrics; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "False"
