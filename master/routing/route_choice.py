"""One decision from one snapshot: a route, or why there is none and whether waiting can help.

The router chooses among the workers that may be asked; here it is decided who that is, what a missing role means, and
which of the answers "no" is final.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from master.routing.policies import Policy, soonest
from master.routing.router import Route, missing_route, pick_first, pick_last_resort
from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage


class Hindrance(Enum):
    NEVER = "never"  # no worker of this cluster could ever hold it
    NOT_NOW = "not_now"  # a worker is missing, or not to be asked for a while
    NO_ROOM = "no_room"  # everybody who could serve it has refused it


@dataclass(frozen=True, slots=True)
class NoRoute:
    hindrance: Hindrance
    reason: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """A snapshot. `connected` workers take work; of them `askable` ones may be asked by this request now.

    `lonely` prefill workers reach no decode worker; `is_complete`: every known worker is connected.
    """

    connected: Sequence[WorkerView]
    askable: Sequence[WorkerView]
    lonely: Collection[str] = ()
    refused: Collection[str] = ()
    is_complete: bool = True


def choose_route(
    fleet: Fleet, prompt: PromptView, avoided: Collection[str], *, any_role: bool, policy: Policy = soonest
) -> Route | NoRoute:
    """`any_role`: where a role is missing, any engine serves rather than nobody."""
    route = _pick(fleet.askable, prompt, {*avoided, *fleet.lonely}, any_role, policy)
    if route is not None:
        return route
    if _pick(fleet.connected, prompt, avoided, any_role, policy) is not None:
        return _withheld(fleet)
    reason = missing_route(fleet.connected, any_role=any_role)
    if reason is not None:
        return NoRoute(Hindrance.NOT_NOW, reason)
    problem = f"prompt and completion of {prompt.max_total_tokens} tokens fit no worker's memory"
    return NoRoute(Hindrance.NEVER if fleet.is_complete else Hindrance.NOT_NOW, problem)


def is_fallback(route: Route) -> bool:
    """Whether the worker's role does not allow what it is asked for."""
    return route.stage is Stage.WHOLE and route.worker.role in (Role.PREFILL, Role.DECODE)


def _pick(
    workers: Sequence[WorkerView], prompt: PromptView, avoided: Collection[str], any_role: bool, policy: Policy
) -> Route | None:
    route = pick_first(workers, prompt, avoided, policy)
    return pick_last_resort(workers, prompt, avoided, policy) if route is None and any_role else route


def _withheld(fleet: Fleet) -> NoRoute:
    """There are workers for it, which are not to be asked."""
    names = {worker.name for worker in fleet.connected} - {worker.name for worker in fleet.askable}
    if names & set(fleet.refused):
        return NoRoute(Hindrance.NO_ROOM, f"no room on {', '.join(sorted(names))}")
    return NoRoute(Hindrance.NOT_NOW, f"{', '.join(sorted(names))} failed too often of late and is given a pause")
