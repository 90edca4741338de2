"""Who calls, as far as the call's metadata say."""

from master.edge.grpc.status import Context
from serving.grpc_guard import BEARER, METADATA_KEY
from serving.keys import client_of


def caller(context: Context) -> str:
    """Tells clients apart by the key they present; empty for one that presents none."""
    for name, value in context.invocation_metadata() or ():
        if name == METADATA_KEY:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            return client_of(text.removeprefix(BEARER).strip().encode())
    return ""
