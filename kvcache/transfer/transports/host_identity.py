"""Whether two processes can see each other by process id: the same boot of the same kernel and pid namespace."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostIdentity:
    boot_id: bytes
    pid_namespace: int


def this_host() -> HostIdentity | None:
    """None where the system does not say (anything but Linux, or /proc hidden)."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
        pid_namespace = os.stat("/proc/self/ns/pid").st_ino
        return HostIdentity(bytes.fromhex(boot_id.strip().replace("-", "")), pid_namespace)
    except (OSError, ValueError):
        return None
