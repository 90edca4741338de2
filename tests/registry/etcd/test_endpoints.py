"""Addresses of etcd, as written and as given to gRPC."""

from pathlib import Path

import pytest

from registry.etcd.config import EtcdConfig
from registry.etcd.endpoints import grpc_target, parse_endpoints


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:2379", "ipv4:127.0.0.1:2379"),
        ("http://127.0.0.1:2379/", "ipv4:127.0.0.1:2379"),
        ("10.0.0.1:2379, 10.0.0.2:2380", "ipv4:10.0.0.1:2379,10.0.0.2:2380"),
        ("[::1]:2379", "ipv6:[::1]:2379"),
        ("[::1]:1,10.0.0.1:2", "ipv6:[::1]:1,[::ffff:10.0.0.1]:2"),
        ("etcd.example:2379", "dns:///etcd.example:2379"),
        ("10.0.0.1:1,nowhere.invalid:2", "ipv4:10.0.0.1:1"),
    ],
)
async def test_targets_let_grpc_fail_over(text: str, target: str) -> None:
    assert await grpc_target(parse_endpoints(text), timeout_s=10) == target


async def test_a_name_among_several_is_looked_up() -> None:
    target = await grpc_target(parse_endpoints("localhost:1,127.0.0.1:2"), timeout_s=10)
    assert "127.0.0.1:2" in target
    assert "localhost" not in target


async def test_no_known_name_is_an_error() -> None:
    with pytest.raises(OSError, match=r"a\.invalid:1"):
        await grpc_target(parse_endpoints("a.invalid:1,b.invalid:1"), timeout_s=10)


@pytest.mark.parametrize("text", ["", ",", "host", "host:", ":1", "::1:2379", "host:0", "host:65536", "host:x", "h:²"])
def test_wrong_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="etcd address"):
        EtcdConfig(text)


def test_https_asks_for_tls_for_all_or_none() -> None:
    assert EtcdConfig("https://a:1,https://b:1").is_secure
    assert not EtcdConfig("a:1").is_secure
    assert EtcdConfig("a:1", ca_file=__file__).is_secure
    with pytest.raises(ValueError, match="https"):
        EtcdConfig("https://a:1,b:1")


def test_halves_of_an_identity_are_refused() -> None:
    with pytest.raises(ValueError, match="password"):
        EtcdConfig("a:1", user="root")
    with pytest.raises(ValueError, match="key"):
        EtcdConfig("a:1", cert_file=__file__)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ca_file.*nowhere\.pem"):
        EtcdConfig("a:1", ca_file=str(tmp_path / "nowhere.pem"))


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(EtcdConfig("a:1", user="root", password="secret"))
