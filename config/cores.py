"""How many cores this process may use, which in containers is fewer than the machine has."""

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """By its affinity and the CPU quotas of its control groups (version 1 and 2); half a core is none."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _folders(cgroups, own) if (quota := _quota(folder)) is not None]
    return max(1, min([affinity, *(int(quota) for quota in quotas)]))


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """Those that may limit this process: its own group and all above, as each has a quota of its own."""
    folders: list[Path] = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        group = root / path.strip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return folders


def _quota(folder: Path) -> float | None:
    """In cores; None where there is none. Version 2 writes "max" and version 1 writes -1 for that."""
    words = _read(folder / "cpu.max").split() or [
        *_read(folder / "cpu.cfs_quota_us").split(),
        *_read(folder / "cpu.cfs_period_us").split(),
    ]
    if len(words) != 2 or words[0] in ("max", "-1"):
        return None
    return int(words[0]) / int(words[1])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
