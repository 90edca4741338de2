"""What master and worker must agree on before they work together: protocol, product version, the cluster's secret."""

import hashlib
import hmac

PROTOCOL = 1  # of the session; grows with every change that the other side can't ignore
NONCE_BYTES = 16


def version_mismatch(protocol: int, version: str, other_protocol: int, other_version: str) -> str | None:
    """Why a peer of another version can't be worked with; None when it can. A patch level may differ."""
    if protocol != other_protocol:
        return f"it speaks version {other_protocol} of the session protocol, not {protocol}"
    if _series(version) != _series(other_version):
        return f"it is pdserve {other_version}, not {version}"
    return None


def prove(secret: str, nonce: bytes) -> bytes:
    """Shows that one knows the secret, and nothing else about it."""
    return hmac.digest(secret.encode(), b"pdserve session" + nonce, hashlib.sha256)


def is_proof(proof: bytes, secret: str, nonce: bytes) -> bool:
    return hmac.compare_digest(proof, prove(secret, nonce))


def _series(version: str) -> list[str]:
    return version.split(".")[:2]
