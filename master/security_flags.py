"""The flags that say who may use a master, and how it shows itself to workers."""

from dataclasses import dataclass
from pathlib import Path

from config.flags import FlagError, flag
from master.workers.access import WorkerAccess, worker_credentials
from serving.cluster_flags import ClusterFlags
from serving.keys import Keys
from serving.server_tls import ServerTls, server_tls


@dataclass(frozen=True)
class SecurityFlags(ClusterFlags):
    """The methods raise FlagError for what cannot be used."""

    api_key: tuple[str, ...] = flag((), "Keys that clients must present one of", group="Security")
    api_key_file: Path | None = flag(
        None, "File with such keys, one a line; read again when it changes, and on SIGHUP", group="Security"
    )
    tls_cert_file: Path | None = flag(
        None, "This master's certificate; turns TLS on for clients, HTTP and gRPC", group="Security"
    )
    tls_key_file: Path | None = flag(None, "Key of that certificate", group="Security")
    tls_client_ca_file: Path | None = flag(
        None, "CA that clients' certificates must be of; by default they need none", group="Security"
    )
    worker_tls_ca_file: Path | None = flag(
        None, "CA that workers' certificates must be of; turns TLS on towards workers", group="Security"
    )
    worker_tls_cert_file: Path | None = flag(None, "This master's certificate for workers", group="Security")
    worker_tls_key_file: Path | None = flag(None, "Key of that certificate", group="Security")
    worker_tls_server_name: str | None = flag(
        None, "Name in workers' certificates; by default the host they are reached at", group="Security"
    )
    isolate_prefix_caches: bool = flag(
        False,
        "Clients of different API keys share no prefix cache, so that no time to first token tells one of another",
        group="Security",
    )
    cors_origins: tuple[str, ...] = flag(
        (), "Origins of web pages that may read answers, such as https://chat.example; * for all", group="Security"
    )

    def api_keys(self) -> Keys | None:
        """None when clients need none."""
        if not self.api_key and self.api_key_file is None:
            return None
        try:
            Keys(self.api_key)
        except ValueError as error:
            raise FlagError("api_key", str(error)) from error
        try:
            return Keys(self.api_key, self.api_key_file)
        except (OSError, ValueError) as error:
            raise FlagError("api_key_file", f"{self.api_key_file}: {error}") from error

    def client_tls(self) -> ServerTls | None:
        """None when clients connect without TLS."""
        return server_tls("tls_", self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)

    def worker_access(self) -> WorkerAccess:
        credentials = worker_credentials(self.worker_tls_ca_file, self.worker_tls_cert_file, self.worker_tls_key_file)
        keys = self.cluster_keys()
        return WorkerAccess(() if keys is None else tuple(keys.all), credentials, self.worker_tls_server_name)
