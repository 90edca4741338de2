"""Certificates for this host, made for one test."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Key and self-signed certificate, its own CA, as PEM files."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, timeout=60, capture_output=True)
    return key, certificate
