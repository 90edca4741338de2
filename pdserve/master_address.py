"""The flags that say which master a command talks to."""

from dataclasses import dataclass
from pathlib import Path

from config.address import split_host_port
from config.flags import flag


def _address(value: str) -> None:
    split_host_port(value)


@dataclass(frozen=True)
class MasterAddressFlags:
    """Inherited by the flags of every command that talks to a cluster."""

    address: str = flag("127.0.0.1:28889", "gRPC address of a master", group="Network", check=_address)
    ca_file: Path | None = flag(None, "CA that the master's certificate must be of; turns TLS on", group="Network")
