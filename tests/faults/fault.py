"""One row of the fault table: what is done to a cluster, and what its clients may notice of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tests.faults.scene import Scene

Roles = tuple[str, ...]

ONE_OF_EACH: Roles = ("PREFILL", "DECODE")
TWO_OF_EACH: Roles = ("PREFILL", "PREFILL", "DECODE", "DECODE")
TWO_MIXED: Roles = ("MIX", "MIX")


class Spare(Enum):
    """Whether another worker of the role is there when the fault strikes."""

    YES = "with a spare"
    NO = "without"


@dataclass(frozen=True)
class Fault:
    """`disturb` does it while the load runs, and returns when it is over.

    `most_failed` bounds failed requests of 800; a layout that is not in it makes no promise. `flags_of` are given to
    workers by name; `absent` ones are started by the fault; those of `other_model` load another checkpoint under the
    same name. `test` proves the promise on every run of the tests.
    """

    name: str
    promise: str
    disturb: Callable[[Scene], Awaitable[None]]
    layouts: Mapping[Spare, Roles]
    most_failed: Mapping[Spare, int]
    test: str
    flags_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    master_flags: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    other_model: tuple[str, ...] = ()
    num_masters: int = 1
    needs_etcd: bool = False
    needs_hosts: bool = False
