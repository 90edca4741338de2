"""The command `pdserve bench`: what can be measured, and with which flags."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from client.errors import PdserveError
from config.flags import FlagError, parse
from pdserve.bench.engine import EngineBenchConfig, bench_engine
from pdserve.bench.master.measure import MasterBenchConfig, bench_master
from pdserve.bench.router import RouterBenchConfig, bench_router
from pdserve.bench.serve import BenchConfig, run_bench
from pdserve.bench.step_watch import EngineFailed
from pdserve.status import one_line

DEFAULT = "serve"


@dataclass(frozen=True, slots=True)
class _Part:
    """`run` takes what is said after its name."""

    purpose: str
    run: Callable[[Sequence[str]], int]


def bench(argv: Sequence[str]) -> int:
    """`serve` where no part is named. Raises FlagError."""
    parts = {
        DEFAULT: _Part("load on a cluster, as its clients feel it", _serve),
        "engine": _Part("a worker's engine by itself: prompts, steps, sampling", _engine),
        "master": _Part("a master by itself, between stand-in workers and its own load", _master),
        "router": _Part("a master's routing decisions, by the size of the fleet", _router),
    }
    if argv and not argv[0].startswith("-"):
        name, flags = argv[0], argv[1:]
    elif {"-h", "--help"} & set(argv):
        lines = [f"  pdserve bench {name:<9}{part.purpose}" for name, part in parts.items()]
        print("\n".join([*lines, "", f"Without a name it is {DEFAULT}; each shows its flags with --help."]))
        return 0
    else:
        name, flags = DEFAULT, argv
    if name not in parts:
        raise FlagError(None, f"nothing called {name!r} can be measured; there are {', '.join(parts)}")
    return parts[name].run(flags)


def _serve(argv: Sequence[str]) -> int:
    config = parse(
        BenchConfig,
        argv,
        prog="pdserve bench serve",
        description="Puts load on a cluster and measures what its clients feel.",
        environ=os.environ,
        version=version("pdserve"),
    )
    try:
        return asyncio.run(run_bench(config))
    except PdserveError as error:
        print(f"pdserve bench: no answer from the master at {config.address}: {one_line(error)}", file=sys.stderr)
        return 2


def _engine(argv: Sequence[str]) -> int:
    config = parse(
        EngineBenchConfig,
        argv,
        prog="pdserve bench engine",
        description="Measures a worker's engine without a server around it. Takes a worker's flags too.",
        environ=os.environ,
        version=version("pdserve"),
    )
    try:
        return bench_engine(config)
    except EngineFailed as error:
        print(f"pdserve bench engine: {error}", file=sys.stderr)
        return 1


def _master(argv: Sequence[str]) -> int:
    config = parse(
        MasterBenchConfig,
        argv,
        prog="pdserve bench master",
        description="Measures a master's CPU time, latency and memory, with workers that compute nothing.",
        environ=os.environ,
        version=version("pdserve"),
    )
    return asyncio.run(bench_master(config))


def _router(argv: Sequence[str]) -> int:
    config = parse(
        RouterBenchConfig,
        argv,
        prog="pdserve bench router",
        description="Measures what routing a request costs a master, with workers that are figures only.",
        environ=os.environ,
        version=version("pdserve"),
    )
    return bench_router(config)
