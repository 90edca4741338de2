"""How a browser presents an API key to the page: as the password of HTTP's Basic scheme, which it asks its user for."""

import base64
import binascii

from starlette.types import Scope

PATH = "/dashboard"
CHALLENGE = (b"www-authenticate", b'Basic realm="pdserve: any name, and an API key as the password", charset="UTF-8"')
BASIC = b"basic "


def is_dashboard(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == PATH or path.startswith(f"{PATH}/")


def passwords(scope: Scope) -> list[bytes]:
    """Those of the request's headers, at most one in truth."""
    found = []
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(BASIC)].lower() == BASIC:
            try:
                _, colon, password = base64.b64decode(value[len(BASIC) :], validate=True).partition(b":")
            except binascii.Error:
                continue
            if colon:
                found.append(password)
    return found
