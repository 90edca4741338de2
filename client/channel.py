"""How the clients' channels are set up."""

import os
import re
from os import PathLike
from pathlib import Path

import grpc

MESSAGE_LIMIT_BYTES = 64 * 2**20
API_KEY_VARIABLE = "PDSERVE_API_KEY"
API_KEY = re.compile(r"[\x21-\x7e]+")

OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy from the environment would take traffic that never leaves the cluster
    ("grpc.enable_retries", 0),  # client.retries does, knowing what is safe
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    # A stream may be silent for minutes; a master that vanished is noticed all the same.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A master that is restarting is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def target_of(address: str) -> str:
    """gRPC's name for host:port or [ipv6]:port. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address; write host:port, such as localhost:28889 or [::1]:28889")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if "/" in host or (":" in host and not is_bracketed):
        raise ValueError(f"{address!r} is no address; write host:port without a scheme, and IPv6 in brackets")
    return f"dns:///{address}"


def load_credentials(
    ca_file: str | PathLike[str] | None,
    cert_file: str | PathLike[str] | None = None,
    key_file: str | PathLike[str] | None = None,
) -> grpc.ChannelCredentials | None:
    """None without `ca_file`: no TLS. Else TLS that trusts only the certificates in it; all files are PEM.

    Certificate and key are for a server that wants to know its clients. Raises OSError when a file can't be read,
    ValueError when one of the files is missing.
    """
    if (cert_file is None) != (key_file is None):
        raise ValueError("cert_file and key_file go together; only one of them is set")
    if ca_file is None:
        if cert_file is not None:
            raise ValueError("cert_file is set without ca_file, which turns TLS on")
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=Path(ca_file).read_bytes(),
        private_key=None if key_file is None else Path(key_file).read_bytes(),
        certificate_chain=None if cert_file is None else Path(cert_file).read_bytes(),
    )


def call_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """What goes with every call. None takes the key from PDSERVE_API_KEY, if that is set.

    A master reads several from the same variable, separated by commas; the first is taken. Raises ValueError for a key
    that can't be sent, without repeating it.
    """
    key = os.environ.get(API_KEY_VARIABLE, "").split(",")[0].strip() if api_key is None else api_key
    if not key:
        return ()
    if API_KEY.fullmatch(key) is None:
        raise ValueError("api_key may only have visible ASCII characters, and no spaces")
    return (("authorization", f"Bearer {key}"),)
