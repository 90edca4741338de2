"""The socket that the transfer port listens on."""

import socket

_BACKLOG = 1024
_SEND_BUFFER_BYTES = 4 << 20


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError when the address cannot be had."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _can_have_buffer(family, _SEND_BUFFER_BYTES):
            # Accepted connections inherit it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _can_have_buffer(family: int, num_bytes: int) -> bool:
    """Whether the system grants a send buffer of that size. A clamped one is worse than none: it ends autotuning."""
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, num_bytes)
        return trial.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= num_bytes
