"""What the flags of the registry refuse."""

from dataclasses import dataclass

import pytest

from config.flags import FlagError
from registry.etcd.flags import EtcdFlags


@dataclass(frozen=True)
class Flags(EtcdFlags):
    pass


ELSEWHERE = "192.0.2.1:2379"  # of a net that is reserved for documentation


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
async def test_an_address_that_only_its_owner_reaches_is_no_word_for_a_registry_elsewhere(host: str) -> None:
    """R37"""
    with pytest.raises(FlagError, match=f"{host} can only be reached from here") as refused:
        await Flags(etcd_addr=ELSEWHERE).check_advertised(host)
    assert refused.value.flag == "advertise_host"


@pytest.mark.parametrize(
    ("etcd_addr", "host"),
    [
        (None, "127.0.0.1"),
        ("127.0.0.1:2379", "127.0.0.1"),
        ("localhost:2379", "::1"),
        (f"{ELSEWHERE},127.0.0.1:2379", "127.0.0.1"),
        ("no-such-host.invalid:2379", "127.0.0.1"),
        (ELSEWHERE, "10.0.0.7"),
        (ELSEWHERE, "worker-7.example"),
    ],
)
async def test_any_other_is_published(etcd_addr: str | None, host: str) -> None:
    """R37"""
    await Flags(etcd_addr=etcd_addr).check_advertised(host)
