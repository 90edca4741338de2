"""Network addresses as people write them: host:port, IPv6 in brackets."""

import ipaddress
import re
import socket
from dataclasses import dataclass

LARGEST_PORT = 65535
HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
# Reserved for documentation (RFC 5737, RFC 3849), so surely not on a local network.
FAR_IPV4, FAR_IPV6 = "192.0.2.1", "2001:db8::1"


@dataclass(frozen=True)
class Address:
    """A host (name, IPv4, or IPv6 without brackets) and a port; port 0 asks for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def parse_address(text: str) -> Address:
    """Raises ValueError saying what is wrong with `text`."""
    return Address(*split_host_port(text))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Addresses separated by commas, at least one. Raises ValueError naming the wrong one."""
    return tuple(parse_address(part.strip()) for part in text.split(","))


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """("::1", 2379) for "[::1]:2379". Raises ValueError saying what is wrong with `text`."""
    if not text:
        raise ValueError("the address is empty")
    if "://" in text:
        raise ValueError(f"{text!r} has a scheme; write host:port only")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket:
            raise ValueError(f"{text!r} has no closing bracket")
        if not _is_ipv6(host):
            raise ValueError(f"{text!r} has no IPv6 address in its brackets")
        if not rest.startswith(":"):
            raise ValueError(f"{text!r} has no port; write [{host}]:port")
        return host, _port(text, rest[1:])
    if _is_ipv6(text):
        raise ValueError(f"{text!r} is IPv6 without brackets; write [address]:port")
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port; write {text}:port")
    if _is_ipv6(host):
        raise ValueError(f"{text!r} is IPv6 without brackets; write [{host}]:{port}")
    if not host:
        raise ValueError(f"{text!r} has no host")
    if not HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r} has no valid host name: {host!r}")
    return host, _port(text, port)


def free_of_wildcard(host: str) -> str:
    """The host to advertise for a socket bound to `host`: itself, or for a wildcard the address other machines reach.

    A wildcard ("", "0.0.0.0", "::") becomes this machine's address on its default route; with no route, loopback.
    """
    if not host:
        return free_of_wildcard("0.0.0.0")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    ipv4 = _source_address(socket.AF_INET, FAR_IPV4)
    if address.version == 4:
        return ipv4 or "127.0.0.1"
    # a socket on :: usually takes IPv4 as well, but on a machine with no route only ::1 is certain
    return _source_address(socket.AF_INET6, FAR_IPV6) or ipv4 or "::1"


def _source_address(family: socket.AddressFamily, target: str) -> str | None:
    """The local address the kernel would send from; connecting a datagram socket sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _port(text: str, port: str) -> int:
    if not port:
        raise ValueError(f"{text!r} has no port after the colon")
    if not re.fullmatch(r"[0-9]{1,9}", port):
        raise ValueError(f"{text!r} has a port that is not a number: {port!r}")
    if int(port) > LARGEST_PORT:
        raise ValueError(f"{text!r} has port {port}; ports end at {LARGEST_PORT}")
    return int(port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
