"""How this master reaches workers: over TLS or not, and with which secret of the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from config.flags import FlagError
from protos.session_identity import is_proof

Options = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """`tokens` are the secrets of the cluster: the first is presented, and workers must prove that they know one.

    `server_name` is what workers' certificates are for, where that is not the address they are reached at.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    credentials: grpc.ChannelCredentials | None = None
    server_name: str | None = None

    def channel(self, address: str, options: Options) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        if self.server_name is not None:
            options = (*options, ("grpc.ssl_target_name_override", self.server_name))
        return grpc.aio.secure_channel(address, self.credentials, options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[0]}"),) if self.tokens else ()

    def trusts(self, proof: bytes, nonce: bytes) -> bool:
        """Whether a worker that answered so is of this cluster; without a secret every one is."""
        return not self.tokens or any(is_proof(proof, token, nonce) for token in self.tokens)


PLAIN = WorkerAccess()


def worker_credentials(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> grpc.ChannelCredentials | None:
    """Reads the files of the flags `worker_tls_…`; None without a CA. Raises FlagError for those that can't be used."""
    if (cert_file is None) != (key_file is None):
        missing = "worker_tls_key_file" if key_file is None else "worker_tls_cert_file"
        raise FlagError(missing, "unset; certificate and key go together")
    if ca_file is None:
        if cert_file is not None:
            raise FlagError("worker_tls_ca_file", "unset; worker_tls_cert_file is of no use without it")
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read("worker_tls_ca_file", ca_file),
        private_key=None if key_file is None else _read("worker_tls_key_file", key_file),
        certificate_chain=None if cert_file is None else _read("worker_tls_cert_file", cert_file),
    )


def _read(flag_name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FlagError(flag_name, f"{file}: {error.strerror}") from error
