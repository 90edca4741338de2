"""How a master and a worker meet: what each says about itself, and what keeps them apart."""

import secrets
from dataclasses import dataclass

from master.workers.access import PLAIN, WorkerAccess
from protos.session_identity import NONCE_BYTES, PROTOCOL, version_mismatch
from protos.session_messages import Hello, Welcome


@dataclass(frozen=True, slots=True)
class MasterIdentity:
    """This master, as workers know it."""

    master_id: str
    version: str
    protocol: int = PROTOCOL
    access: WorkerAccess = PLAIN

    def hello(self) -> Hello:
        """A new one for each session, since its nonce is."""
        return Hello(self.master_id, self.protocol, self.version, secrets.token_bytes(NONCE_BYTES))

    def problem(self, hello: Hello, welcome: Welcome, name: str | None) -> str | None:
        """Why this master can't work with the worker that answered so; None when it can.

        `name` is that of the worker that is looked for, None if any is welcome.
        """
        if name is not None and welcome.instance != name:
            return f"{welcome.instance} has its address"
        if not self.access.trusts(welcome.proof, hello.nonce):
            return f"{welcome.instance} does not know the cluster's secret; see --cluster_token"
        return version_mismatch(self.protocol, self.version, welcome.protocol, welcome.version)
