"""The flags by which masters and workers know each other to be of one cluster."""

from dataclasses import dataclass
from pathlib import Path

from config.flags import FlagError, flag
from serving.keys import Keys, read_keys


@dataclass(frozen=True)
class ClusterFlags:
    """Inherited by the flags of masters and workers."""

    cluster_token: tuple[str, ...] = flag(
        (), "Secret of the cluster; of several the first is presented, any is accepted", group="Security"
    )
    cluster_token_file: Path | None = flag(
        None, "File with such secrets, one a line; they come before those of cluster_token", group="Security"
    )

    def cluster_keys(self) -> Keys | None:
        """None when the cluster has no secret. Raises FlagError for one that cannot be used."""
        from_file: list[str] = []
        if self.cluster_token_file is not None:
            try:
                from_file = read_keys(self.cluster_token_file)
            except (OSError, ValueError) as error:
                raise FlagError("cluster_token_file", f"{self.cluster_token_file}: {error}") from error
        if not from_file and not self.cluster_token:
            return None
        try:
            return Keys([*from_file, *self.cluster_token])
        except ValueError as error:
            raise FlagError("cluster_token", str(error)) from error
