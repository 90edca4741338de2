"""The command `pdserve`: what it says when it is held wrong."""

import subprocess
import sys

import pytest


def pdserve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pdserve.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(arguments: tuple[str, ...]) -> None:
    done = pdserve(*arguments)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("serve", "status", "chat", "bench"))


def test_version() -> None:
    done = pdserve("--version")
    assert done.returncode == 0 and done.stdout.startswith("pdserve ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("sreve",), "unknown command 'sreve'"),
        (("serve", "--prefil=2"), "--prefil: unknown flag; did you mean --prefill?"),
        (("serve", "--prefill=0"), "--prefill: 0 PREFILL, 1 DECODE and no MIX worker"),
        (("serve", "--prefill=-1"), "--prefill: '-1' must be between 0 and 64"),
        (("status", "--address=nowhere"), "--address: 'nowhere'"),
        (("bench", "--requests=none"), "--requests: 'none'"),
        (("bench", "--address=127.0.0.1:1"), "no answer from the master at 127.0.0.1:1"),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(arguments: tuple[str, ...], named: str) -> None:
    done = pdserve(*arguments)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
