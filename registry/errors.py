"""The one family of errors the registry raises."""


class RegistryError(Exception):
    """The registry refused or failed a call; the message carries its own words."""


class RegistryUnavailable(RegistryError):
    """No endpoint answered in time. The state of the registry is unknown; keep what is known and try again."""


class RegistryDenied(RegistryError):
    """The registry answered, and does not accept this user, password, token or certificate."""


class LeaseLost(RegistryError):
    """The lease is gone, with all keys under it."""


class Compacted(RegistryError):
    """The history asked for is no longer kept: list again, and watch from there."""

    def __init__(self, revision: int, compact_revision: int) -> None:
        super().__init__(f"revision {revision} is compacted, the oldest one kept is {compact_revision}")
        self.revision = revision
        self.compact_revision = compact_revision


class HistoryRestarted(RegistryError):
    """Another server, or one that began its revisions anew, has taken the place of the known one: list again."""


class NewerIncarnation(RegistryError):
    """The key is held by a newer incarnation of the same name."""

    def __init__(self, key: str, own: int, held_by: int) -> None:
        super().__init__(f"{key} is held by incarnation {held_by}, newer than {own}")
        self.own = own
        self.held_by = held_by
