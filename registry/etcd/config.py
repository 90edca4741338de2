"""How to reach etcd."""

from dataclasses import dataclass, field
from pathlib import Path

from registry.etcd.endpoints import has_https, parse_endpoints


@dataclass(frozen=True)
class EtcdConfig:
    """Addresses, identity and patience of an etcd client.

    `endpoints` is `host:port,host:port`. TLS is used when a CA or certificate file is given or the endpoints are
    `https://`. `timeout_s` bounds every single call. Raises ValueError naming what is wrong.
    """

    endpoints: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_s: float = 3.0

    def __post_init__(self) -> None:
        parse_endpoints(self.endpoints)
        has_https(self.endpoints)
        if (self.user is None) != (self.password is None):
            raise ValueError("etcd user and password go together: only one of them is given")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("etcd certificate and key file go together: only one of them is given")
        for name in ("ca_file", "cert_file", "key_file"):
            path: str | None = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ValueError(f"etcd {name}: there is no file {path!r}")
        if self.timeout_s <= 0:
            raise ValueError(f"etcd timeout_s must be positive, not {self.timeout_s}")

    @property
    def is_secure(self) -> bool:
        return self.ca_file is not None or self.cert_file is not None or has_https(self.endpoints)
