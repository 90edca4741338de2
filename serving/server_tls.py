"""TLS of a server: its certificate and, where clients must have one too, the CA that theirs must be of."""

import logging
import ssl
from pathlib import Path

import grpc

from config.flags import FlagError

logger = logging.getLogger(__name__)


class ServerTls:
    """Serves HTTP and gRPC alike; `reload` gives new connections the files' present content."""

    def __init__(self, cert_file: Path, key_file: Path, client_ca_file: Path | None) -> None:
        """All files are PEM. Raises OSError, of which SSLError is one, for files that can't be used."""
        self._cert_file = cert_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self.context = self._make_context()
        self.context.set_alpn_protocols(["http/1.1"])
        self._initial = self._grpc_configuration()
        self._changed: grpc.ServerCertificateConfiguration | None = None

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for one server; each needs its own."""
        return grpc.dynamic_ssl_server_credentials(
            self._initial,
            self._take_changed,  # type: ignore[arg-type]  # the stubs do not know that None means: as before
            require_client_authentication=self._client_ca_file is not None,
        )

    def reload(self) -> None:
        """Files that can't be used leave everything as it is."""
        try:
            self._make_context()  # a pair that does not match must not get half-way into the real one
            changed = self._grpc_configuration()
            self._fill(self.context)
        except OSError as error:
            logger.error("the certificate stays as it was: %s: %s", self._cert_file, error)
            return
        self._changed = changed
        logger.info("read the certificate %s again", self._cert_file)

    def _take_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each connection; None: as before."""
        changed, self._changed = self._changed, None
        return changed

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._fill(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._cert_file, self._key_file)
        if self._client_ca_file is not None:
            context.load_verify_locations(self._client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._key_file.read_bytes(), self._cert_file.read_bytes())
        root = None if self._client_ca_file is None else self._client_ca_file.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root)


def server_tls(
    prefix: str, cert_file: Path | None, key_file: Path | None, client_ca_file: Path | None
) -> ServerTls | None:
    """Reads the flags `<prefix>cert_file` and so on; None without a certificate.

    Raises FlagError for files that do not go together or can't be used.
    """
    if cert_file is None:
        for name, file in (("key_file", key_file), ("client_ca_file", client_ca_file)):
            if file is not None:
                raise FlagError(f"{prefix}{name}", f"{file}: it needs {prefix}cert_file too")
        return None
    if key_file is None:
        raise FlagError(f"{prefix}cert_file", f"{cert_file}: it needs {prefix}key_file too")
    try:
        return ServerTls(cert_file, key_file, client_ca_file)
    except OSError as error:
        files = ", ".join(str(file) for file in (cert_file, key_file, client_ca_file) if file is not None)
        raise FlagError(f"{prefix}cert_file", f"{files}: {error}") from error
