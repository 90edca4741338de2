"""A port of this machine that nobody has."""

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Somebody else may take it before it is bound."""
    with socket.create_server((HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
