"""Compiles the C files beside it for this machine's CPU, once, into a per-user cache."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
HEADER = Path(__file__).with_name("kernels.h")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 120.0
# Sums stay in the order in which they are written, and NaN and infinity what they are. `-ffast-math` would change both,
# and how the whole process rounds tiny numbers.
FLAGS = (
    *("-O3", "-march=native", "-pthread", "-fPIC", "-shared", "-ffp-contract=fast"),
    *("-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-Wno-psabi"),
)
CACHE_VARIABLE = "PDSERVE_CACHE"


class CannotBuild(RuntimeError):
    """There is no compiler, or it can't compile; the message has its reason in one line."""


def library_file() -> Path:
    """The shared library, compiled if it is not in the cache. Raises CannotBuild."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise CannotBuild(f"no C compiler ({', '.join(COMPILERS)})")
    target = _cache_dir() / f"kernels-{_key(compiler)}.so"
    if not target.is_file():
        _compile(compiler, target)
    return target


def _compile(compiler: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, target.name)
            command = [compiler, *FLAGS, *map(str, SOURCES), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
            made.replace(target)  # whoever compiles at the same time made the same
    except subprocess.CalledProcessError as error:
        reason = next((line for line in error.stderr.splitlines() if "error" in line), f"status {error.returncode}")
        raise CannotBuild(f"{compiler}: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(str(error)) from error


def _cache_dir() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "pdserve"


def _key(compiler: str) -> str:
    """What the library depends on: its source, how it is compiled, and the CPU it is compiled for."""
    cpu = platform.machine().encode()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        cpu += b"".join(line for line in cpu_info.read_bytes().splitlines() if line.startswith((b"flags", b"Features")))
    sources = b"\0".join(source.read_bytes() for source in (HEADER, *SOURCES))
    parts = (sources, " ".join(FLAGS).encode(), os.path.realpath(compiler).encode(), cpu)
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()
