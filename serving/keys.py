"""Secrets that let a caller in: API keys of clients, cluster tokens of masters."""

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

KEY = re.compile(r"[\x21-\x7e]+")
MAX_FILE_BYTES = 1 << 20
CHECK_INTERVAL_S = 1.0

_Version = tuple[int, int, int]


class Keys:
    """Any of them is accepted, in a time that tells nothing about them.

    Those of the file are read again when it has changed. A file that then has no usable key changes nothing: taking
    away the last key must not open the door, and a half-written file must not close it.
    """

    def __init__(
        self, listed: Sequence[str] = (), file: Path | None = None, *, check_interval_s: float = CHECK_INTERVAL_S
    ) -> None:
        """`file` has one key a line; empty lines and those that begin with # are left out.

        Raises ValueError for a key that no header can carry or a file without one, OSError if it can't be read.
        """
        for key in listed:
            _check(key)
        self._listed = tuple(listed)
        self._file = file
        self._check_interval_s = check_interval_s
        self._salt = secrets.token_bytes(32)
        self._version = None if file is None else _version(file)
        self._keys = self._listed if file is None else (*self._listed, *read_keys(file))
        self._digests = [self._digest(key.encode()) for key in self._keys]
        self._next_check_s = time.monotonic() + check_interval_s

    def __repr__(self) -> str:
        return f"Keys({len(self._keys)})"

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def all(self) -> Sequence[str]:
        return self._keys

    @property
    def first(self) -> str:
        """The one to present, where there is one."""
        return self._keys[0]

    def accepts(self, presented: str | bytes) -> bool:
        if self._file is not None and time.monotonic() >= self._next_check_s:
            self.reload()
        digest = self._digest(presented.encode(errors="replace") if isinstance(presented, str) else presented)
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(known, digest)
        return is_known

    def reload(self) -> None:
        """Reads the file again if it has changed."""
        self._next_check_s = time.monotonic() + self._check_interval_s
        if self._file is None:
            return
        try:
            version = _version(self._file)
            if version == self._version:
                return
            keys = (*self._listed, *read_keys(self._file))
        except (OSError, ValueError) as error:
            if self._version is not None:
                logger.error("the keys of %s stay as they were: %s", self._file, error)
            self._version = None  # said once; read again as soon as it can be
            return
        self._version = version
        self._keys = keys
        self._digests = [self._digest(key.encode()) for key in keys]
        logger.info("read %d keys from %s", len(keys) - len(self._listed), self._file)

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()


def client_of(key: bytes) -> str:
    """Tells the owner of a key from others, in every process alike, and does not tell the key."""
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def read_keys(file: Path) -> list[str]:
    """Raises OSError, and ValueError for a file without keys or with one that no header can carry."""
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"has over {MAX_FILE_BYTES} bytes; it must hold a key a line")
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError("has no key in it")
    for key in keys:
        _check(key)
    return keys


def _check(key: str) -> None:
    """The key itself must not get into a message."""
    if KEY.fullmatch(key) is None:
        raise ValueError("a key may only have visible ASCII characters, and no spaces")


def _version(file: Path) -> _Version:
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size, status.st_ino
