"""Tells checkpoints apart by a hash over the config and every byte of every weights file.

Hashing reads the whole checkpoint, so each file's hash is kept beside it, under its size and time of change.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

logger = logging.getLogger(__name__)

KEPT_NAME = ".pdserve_digests.json"
SETTLED_S = 2.0  # a file younger than this may change again within one tick of its file system's clock
_UNSERVED = ("transformers_version", "_name_or_path")  # keys of a config that say where it came from


@dataclass(frozen=True, slots=True)
class _FileDigest:
    num_bytes: int
    mtime_ns: int
    digest: str  # hex

    def is_of(self, status: os.stat_result) -> bool:
        return (self.num_bytes, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


def weights_digest(folder: Path) -> str:
    """16 hex digits, equal for equal checkpoints in whatever folder. Raises OSError and ValueError."""
    digest = hashlib.blake2b(digest_size=8)
    config = json.loads((folder / "config.json").read_text())
    for key in _UNSERVED:
        config.pop(key, None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name, file_digest in _file_digests(folder).items():
        digest.update(f"{name}:{file_digest.num_bytes}:{file_digest.digest}".encode())
    return digest.hexdigest()


def _file_digests(folder: Path) -> dict[str, _FileDigest]:
    """By the files' names, in their order."""
    kept = _read_kept(folder / KEPT_NAME)
    paths = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))  # as transformers prefers them
    digests = {path.name: _digest_of(path, kept.get(path.name)) for path in paths}
    oldest_unsettled_ns = time.time_ns() - int(SETTLED_S * 1e9)
    settled = {name: digest for name, digest in digests.items() if digest.mtime_ns < oldest_unsettled_ns}
    if settled != kept:
        _keep(folder / KEPT_NAME, settled)
    return digests


def _digest_of(path: Path, kept: _FileDigest | None) -> _FileDigest:
    status = path.stat()
    if kept is not None and kept.is_of(status):
        return kept
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return _FileDigest(status.st_size, status.st_mtime_ns, digest)


def _read_kept(path: Path) -> dict[str, _FileDigest]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _FileDigest])
    except (OSError, msgspec.DecodeError):
        return {}


def _keep(path: Path, digests: dict[str, _FileDigest]) -> None:
    """Other workers may do the same at the same time. The files of a folder that takes none are hashed each time."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(msgspec.json.encode(digests))
        partial.replace(path)
    except OSError as error:
        logger.info("digests of the weights are not kept: %s", error)
        with contextlib.suppress(OSError):
            partial.unlink()
