"""Who sends a request, as far as its headers say.

OpenAI's clients send `Authorization: Bearer KEY`, Anthropic's `x-api-key: KEY`; either is good on every path.
"""

from starlette.types import Scope

from serving.keys import client_of

BEARER = b"bearer "


def presented_keys(scope: Scope) -> list[bytes]:
    return [key for name, value in scope["headers"] if (key := _key(name, value)) is not None]


def caller(scope: Scope) -> str:
    """Tells clients apart by the key they present; empty for one that presents none."""
    keys = presented_keys(scope)
    return client_of(keys[0]) if keys else ""


def _key(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
        return value[len(BEARER) :].strip()
    return None
