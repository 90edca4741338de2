"""The engines there are: a package beside this file, and a line here."""

from importlib import import_module
from typing import Protocol

from config.flags import FlagError
from worker.config import Engine, WorkerConfig
from worker.engines.compute_engine import ComputeEngine
from worker.faults.plan import FaultPlan


class Assemble(Protocol):
    """Returns an engine that is not started yet. Raises FlagError naming what cannot be used."""

    def __call__(self, config: WorkerConfig, advertise_host: str, faults: FaultPlan) -> ComputeEngine: ...


ASSEMBLIES = {
    Engine.TORCH: "worker.engines.torch.assembly",
}


def chosen(engine: Engine) -> Assemble:
    """Imports the engine, and no other: each may need what is only installed for it.

    Raises FlagError when what it needs is not there.
    """
    try:
        assemble: Assemble = import_module(ASSEMBLIES[engine]).assemble
    except ImportError as error:
        raise FlagError("engine", f"{engine.value!r} cannot be imported here: {error}") from error
    return assemble
