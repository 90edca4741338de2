"""Containers give a process fewer cores than the machine has."""

import os
from pathlib import Path

import pytest

from config.cores import usable_cores
from worker.config import WorkerConfig


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def cores(folder: Path, own: str, files: dict[str, str]) -> int:
    """By control groups with these files, of a process whose /proc/self/cgroup is `own`."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return usable_cores(folder / "groups", folder / "own")


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/a/b\n", {"cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/a\n", {"a/cpu.max": "250000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "6400000 100000\n"}, 8),
        ("4:memory:/m\n1:cpu:/c\n0::/\n", {"cpu/c/cpu.cfs_quota_us": "400000", "cpu/c/cpu.cfs_period_us": "100000"}, 4),
        ("1:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_least_of_affinity_and_quotas(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    assert cores(tmp_path, own, files) == expected


def test_a_worker_takes_what_its_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert WorkerConfig().threads == 1
    assert WorkerConfig(num_threads=3).threads == 3
