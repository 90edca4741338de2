"""The master's flags."""

from dataclasses import fields
from pathlib import Path

import pytest

from master.config import MasterConfig
from worker.config import WorkerConfig

OPERATION_GUIDE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
PATIENCE = {
    MasterConfig: (
        "route_timeout_s",
        "max_waiting_requests",
        "resume_timeout_s",
        "retry_share",
        "retry_burst",
        "blame_timeout_s",
        "connect_timeout_s",
        "heartbeat_timeout_s",
        "role_grace_s",
        "lame_duck_s",
    ),
    WorkerConfig: (
        "heartbeat_timeout_s",
        "master_stall_timeout_s",
        "transfer_connect_timeout_s",
        "transfer_silence_timeout_s",
        "max_pull_wait_s",
        "kv_lease_s",
    ),
}


@pytest.mark.parametrize(("config", "name"), [(config, name) for config, names in PATIENCE.items() for name in names])
def test_how_patient_a_cluster_is_can_be_set(config: type[MasterConfig] | type[WorkerConfig], name: str) -> None:
    """R28: no such time is a constant, and the operation guide tells what each does."""
    assert name in {field.name for field in fields(config)}
    assert f"--{name}" in OPERATION_GUIDE
