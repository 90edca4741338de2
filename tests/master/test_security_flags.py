from pathlib import Path

import pytest

from config.flags import FlagError
from master.config import MasterConfig
from tests.tls_files import make_certificate
from worker.config import WorkerConfig


def test_nothing_is_closed_by_default() -> None:
    config = MasterConfig()
    assert config.api_keys() is None and config.client_tls() is None
    access = config.worker_access()
    assert (access.tokens, access.credentials, access.metadata) == ((), None, ())
    worker = WorkerConfig()
    assert worker.cluster_keys() is None and worker.master_tls() is None


def test_the_first_token_is_presented_and_the_files_come_first(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("new\nold\n")
    assert MasterConfig(cluster_token=("older",), cluster_token_file=file).worker_access().tokens == (
        "new",
        "old",
        "older",
    )
    keys = WorkerConfig(cluster_token=("older",), cluster_token_file=file).cluster_keys()
    assert keys is not None
    assert all(keys.accepts(token) for token in ("new", "old", "older"))
    assert "new" not in repr(MasterConfig(cluster_token=("new",)).worker_access())


def test_what_cannot_be_used_is_named_by_its_flag(tmp_path: Path) -> None:
    empty, absent = tmp_path / "empty", tmp_path / "absent"
    empty.write_text("\n")
    key, certificate = make_certificate(tmp_path, "master")
    cases = [
        (MasterConfig(api_key=("se cret",)).api_keys, "api_key"),
        (MasterConfig(api_key_file=empty).api_keys, "api_key_file"),
        (MasterConfig(api_key_file=absent).api_keys, "api_key_file"),
        (MasterConfig(cluster_token=("sé",)).cluster_keys, "cluster_token"),
        (MasterConfig(cluster_token_file=absent).worker_access, "cluster_token_file"),
        (MasterConfig(tls_key_file=key).client_tls, "tls_key_file"),
        (MasterConfig(worker_tls_ca_file=absent).worker_access, "worker_tls_ca_file"),
        (MasterConfig(worker_tls_cert_file=certificate).worker_access, "worker_tls_key_file"),
        (MasterConfig(worker_tls_key_file=key).worker_access, "worker_tls_cert_file"),
        (
            MasterConfig(worker_tls_cert_file=certificate, worker_tls_key_file=key).worker_access,
            "worker_tls_ca_file",
        ),
        (WorkerConfig(worker_tls_cert_file=certificate).master_tls, "worker_tls_cert_file"),
    ]
    for use, flag in cases:
        with pytest.raises(FlagError) as caught:
            use()
        assert caught.value.flag == flag
        assert "cret" not in str(caught.value)
