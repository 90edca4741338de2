"""Where etcd listens: the text of a flag, and the gRPC target made of it."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from config.address import join_host_port
from config.name_service import SocketAddress, look_up

LOOK_UP_S = 10.0


@dataclass(frozen=True)
class Endpoint:
    """One address of etcd; `host` is a name or an IP literal without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def is_literal(self) -> bool:
        """Whether the host is an IP address and needs no name service."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Reads `host:port,host:port`; IPv6 hosts are in brackets, a leading `http://` or `https://` is dropped.

    Raises ValueError naming the part that is wrong.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"etcd address: no endpoint in {text!r}, expected host:port[,host:port...]")
    return tuple(_parse_endpoint(part) for part in parts)


def has_https(text: str) -> bool:
    """Whether an endpoint is written as `https://`, which asks for TLS. Raises ValueError when only some are."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    secure = [part.startswith("https://") for part in parts]
    if any(secure) and not all(secure):
        raise ValueError(f"etcd address: either all or no endpoints are https://, not {text!r}")
    return any(secure)


def _parse_endpoint(part: str) -> Endpoint:
    bare = part.removeprefix("http://").removeprefix("https://").rstrip("/")
    host, _, port = bare.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"etcd address: an IPv6 host needs brackets, [host]:port, not {part!r}")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"etcd address: expected host:port, not {part!r}")
    return Endpoint(host, int(port))


async def grpc_target(endpoints: Sequence[Endpoint], timeout_s: float) -> str:
    """The target over which gRPC fails over by itself.

    A single name is left to gRPC, which looks it up again by itself. gRPC's `ipv4:` and `ipv6:` lists take only
    literals of one family, so among several endpoints names are looked up here, and in a mixed list the IPv4
    addresses are written as IPv6 ones. Raises OSError when no name is known, TimeoutError after `timeout_s`.
    """
    if len(endpoints) == 1 and not endpoints[0].is_literal:
        return f"dns:///{endpoints[0]}"
    addresses = await asyncio.wait_for(_addresses(endpoints), timeout_s)
    if all(address.version == 4 for address, _ in addresses):
        return "ipv4:" + ",".join(f"{address}:{port}" for address, port in addresses)
    return "ipv6:" + ",".join(
        f"[::ffff:{address}]:{port}" if address.version == 4 else f"[{address}]:{port}" for address, port in addresses
    )


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


async def _addresses(endpoints: Sequence[Endpoint]) -> list[tuple[Address, int]]:
    found = await asyncio.gather(*(_look_up(endpoint) for endpoint in endpoints), return_exceptions=True)
    addresses = [pair for pairs in found if not isinstance(pairs, BaseException) for pair in pairs]
    if not addresses:
        raise OSError(f"no address is known for {', '.join(map(str, endpoints))}")
    return list(dict.fromkeys(addresses))


async def _look_up(endpoint: Endpoint) -> list[tuple[Address, int]]:
    if endpoint.is_literal:
        return [(ipaddress.ip_address(endpoint.host), endpoint.port)]
    found = await look_up(endpoint.host, endpoint.port, LOOK_UP_S)
    return [(ipaddress.ip_address(address.host), endpoint.port) for address in found]


async def are_elsewhere(endpoints: Sequence[Endpoint], timeout_s: float) -> bool:
    """Whether every endpoint is surely on another machine; of a name that nobody knows nothing is sure."""
    for endpoint in endpoints:
        try:
            found = await look_up(endpoint.host, endpoint.port, timeout_s)
        except OSError:
            return False
        if any(map(_is_ours, found)):
            return False
    return True


def _is_ours(address: SocketAddress) -> bool:
    """The kernel binds only to the machine's own addresses."""
    with socket.socket(address.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address.host, 0))
        except OSError:
            return False
        return True
