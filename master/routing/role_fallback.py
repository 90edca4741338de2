"""When a missing role is made up for by workers of other roles, on a clock that its caller reads.

    STARTING --every role is there--> WHOLE            roles are strict
    WHOLE    --a role is missing-->   FALLEN_BACK      any engine serves rather than nobody
    STARTING --for longer than the grace--> FALLEN_BACK
    FALLEN_BACK --every role is there--> WHOLE

A cluster that starts gets its workers one after the other; those that come first are not to take what others are for.
"""

from enum import Enum


class Roles(Enum):
    STARTING = "starting"
    WHOLE = "whole"
    FALLEN_BACK = "fallen_back"


class RoleFallback:
    """Time counts from the first worker on."""

    def __init__(self, grace_s: float) -> None:
        self.roles = Roles.STARTING
        self._grace_s = grace_s
        self._first_s: float | None = None

    def observe(self, now_s: float, *, has_workers: bool, is_whole: bool) -> bool:
        """True if this begins or ends a time without a role."""
        if self._first_s is None and has_workers:
            self._first_s = now_s
        before = self.roles
        if is_whole:
            self.roles = Roles.WHOLE
        elif has_workers and (before is not Roles.STARTING or self._is_grace_over(now_s)):
            self.roles = Roles.FALLEN_BACK
        return Roles.FALLEN_BACK in (before, self.roles) and before is not self.roles

    def next_change_s(self) -> float | None:
        """When time alone lets other roles serve."""
        return self._first_s + self._grace_s if self.roles is Roles.STARTING and self._first_s is not None else None

    def _is_grace_over(self, now_s: float) -> bool:
        return self._first_s is not None and now_s >= self._first_s + self._grace_s
