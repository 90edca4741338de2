"""The command `pdserve`: a local cluster, and what one does with any cluster."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

from config import checks
from config.flags import FlagError, fail, flag, parse
from pdserve.bench.command import bench
from pdserve.chat import run_chat
from pdserve.drain import run_drain
from pdserve.local_cluster import ClusterFailed
from pdserve.master_address import MasterAddressFlags
from pdserve.serve import ServeConfig, serve
from pdserve.status import run_status
from pdserve.trace import run_trace

PROG = "pdserve"
ConfigT = TypeVar("ConfigT", "ServeConfig", "StatusConfig", "ChatConfig", "NamedConfig")


@dataclass(frozen=True)
class StatusConfig(MasterAddressFlags):
    watch: bool = flag(False, "Refresh until Ctrl-C", group="Display")


@dataclass(frozen=True)
class ChatConfig(MasterAddressFlags):
    system: str | None = flag(None, "System prompt", group="Chat")
    max_tokens: int | None = flag(
        None, "Of each answer; unset: all that the context leaves", group="Chat", check=checks.at_least(1)
    )
    temperature: float | None = flag(
        None, "Of sampling, 0 is greedy; unset: the server's", group="Chat", check=checks.at_least(0.0)
    )


@dataclass(frozen=True)
class NamedConfig(MasterAddressFlags):
    """Follows the name of what the command is about."""


def main() -> None:
    """Exits with the command's status; 2 and one line for a flag or a cluster that can't be used."""
    commands: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
        "serve": ("a master and workers on this machine", _serve),
        "status": ("the instances of a cluster", _status),
        "chat": ("talk to a cluster from the terminal", _chat),
        "drain": ("NAME: let an instance finish what it has and take nothing new", _drain),
        "trace": ("ID: the timeline of a request", _trace),
        "bench": ("measure a cluster, or a part of it", bench),
    }
    usage = "\n".join(
        [f"usage: {PROG} COMMAND [--flag=value ...]", ""] + [f"  {n:<8} {t[0]}" for n, t in commands.items()]
    )
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(f"{usage}\n\n{PROG} COMMAND --help shows the flags of a command")
        return
    if name == "--version":
        print(f"{PROG} {version('pdserve')}")
        return
    if name not in commands:
        fail(PROG, FlagError(None, f"unknown command {name!r}; there are {', '.join(commands)}"))
    try:
        raise SystemExit(commands[name][1](sys.argv[2:]))
    except FlagError as error:
        fail(f"{PROG} {name}", error)


def _serve(argv: Sequence[str]) -> int:
    config = _parse(ServeConfig, argv, "serve", "Starts a registry, a master and workers on this machine.")
    try:
        return asyncio.run(serve(config))
    except ClusterFailed as error:
        print(f"{PROG} serve: {error}", file=sys.stderr)
        return 1 if error.can_heal else 2


def _status(argv: Sequence[str]) -> int:
    config = _parse(StatusConfig, argv, "status", "Shows the instances of a cluster.")
    return run_status(config.address, config.watch, config.ca_file)


def _chat(argv: Sequence[str]) -> int:
    config = _parse(ChatConfig, argv, "chat", "Talks to a cluster from the terminal.")
    return run_chat(
        config.address,
        ca_file=config.ca_file,
        system=config.system,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
    )


def _drain(argv: Sequence[str]) -> int:
    about = "Lets an instance finish what it has and take nothing new."
    name, config = _named(argv, "drain", "instance", "decode-0", about)
    return run_drain(config.address, name, config.ca_file)


def _trace(argv: Sequence[str]) -> int:
    about = "Shows the timeline of a request that the master ran lately, by its id or its client's name for it."
    name, config = _named(argv, "trace", "request", "chatcmpl-req-0123456789abcdef", about)
    return run_trace(config.address, name, config.ca_file)


def _named(argv: Sequence[str], command: str, what: str, example: str, about: str) -> tuple[str, NamedConfig]:
    """The name that comes first, and the flags. Raises FlagError without one."""
    has_name = bool(argv) and not argv[0].startswith("-")
    if not has_name and not {"-h", "--help"} & set(argv):
        raise FlagError(None, f"no {what} is named; it comes first, as in: pdserve {command} {example}")
    config = _parse(NamedConfig, argv[1:] if has_name else argv, f"{command} {what.upper()}", about)
    return argv[0] if has_name else "", config


def _parse(cls: type[ConfigT], argv: Sequence[str], command: str, description: str) -> ConfigT:
    return parse(
        cls, argv, prog=f"{PROG} {command}", description=description, environ=os.environ, version=version("pdserve")
    )


if __name__ == "__main__":
    main()
