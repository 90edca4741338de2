"""How the clients' channels are set up."""

from pathlib import Path

import grpc

MESSAGE_LIMIT_BYTES = 64 * 2**20

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


def load_credentials(ca_file: Path) -> grpc.ChannelCredentials:
    """TLS that trusts only the certificates in `ca_file` (PEM). Raises OSError when it can't be read."""
    return grpc.ssl_channel_credentials(root_certificates=ca_file.read_bytes())
