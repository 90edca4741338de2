"""The SDK, as users import it: `from pdserve import Client`."""

from client.async_client import AsyncClient
from client.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PdserveError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from client.sync_client import Client

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "InternalError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "PdserveError",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
]
