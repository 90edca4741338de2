"""The flags by which every process is told where the registry is."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from config import checks
from config.flags import FlagError, flag
from registry.etcd.config import EtcdConfig
from registry.etcd.endpoints import are_elsewhere, parse_endpoints


@dataclass(frozen=True)
class EtcdFlags:
    """Inherited by the flags of masters and workers."""

    etcd_addr: str | None = flag(None, "etcd endpoints, host:port, comma-separated", group="Registry")
    etcd_user: str | None = flag(None, "etcd user", group="Registry")
    etcd_password: str | None = flag(None, "Password of the etcd user", group="Registry")
    etcd_ca_file: Path | None = flag(None, "CA that etcd's certificate must be of; turns TLS on", group="Registry")
    etcd_cert_file: Path | None = flag(None, "This process's certificate for etcd", group="Registry")
    etcd_key_file: Path | None = flag(None, "Key of that certificate", group="Registry")
    etcd_wait_s: float = flag(
        30.0,
        "How long etcd may be unreachable at start",
        group="Registry",
        unit="s",
        check=checks.more_than(0.0),
    )
    cluster: str = flag("default", "Name of the cluster in the registry", group="Registry")

    def etcd_config(self) -> EtcdConfig:
        """Raises FlagError for settings that are malformed or do not go together."""
        assert self.etcd_addr is not None
        try:
            return EtcdConfig(
                endpoints=self.etcd_addr,
                user=self.etcd_user,
                password=self.etcd_password,
                ca_file=_text(self.etcd_ca_file),
                cert_file=_text(self.etcd_cert_file),
                key_file=_text(self.etcd_key_file),
            )
        except ValueError as error:
            raise FlagError("etcd_addr", str(error)) from error

    async def check_advertised(self, host: str) -> None:
        """Raises FlagError for a host that only this machine can reach, if the registry's readers are elsewhere."""
        if self.etcd_addr is None or not _is_loopback(host):
            return
        config = self.etcd_config()
        if await are_elsewhere(parse_endpoints(config.endpoints), config.timeout_s):
            problem = f"{host} can only be reached from here, and the registry {config.endpoints} is elsewhere"
            raise FlagError("advertise_host", f"{problem}; name the address that others reach this process at")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
