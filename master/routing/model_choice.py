"""Which of several models under one name a cluster serves: one, never a mixture."""

from collections.abc import Sequence

from master.routing.router import missing_route
from master.routing.views import WorkerView

Kind = tuple[str, int]  # the model's identity, and the protocol by which its KV is handed over


def kind_of(worker: WorkerView) -> Kind:
    return worker.model, worker.transfer_protocol


def choose_kind(workers: Sequence[WorkerView], current: Kind | None) -> Kind | None:
    """`workers` are all that are to stay, connected or not. None while none was ever heard of.

    What is served now stays, unless another kind that could serve whole requests has more workers. So strangers are
    left out, and a rolling upgrade changes over once, half-way.
    """
    groups: dict[Kind, list[WorkerView]] = {}
    for worker in workers:
        groups.setdefault(kind_of(worker), []).append(worker)
    able = [kind for kind, group in groups.items() if missing_route(group) is None]

    def rank(kind: Kind) -> tuple[int, Kind]:
        return (-len(groups[kind]), kind)

    if current in groups:
        rivals = [kind for kind in able if len(groups[kind]) > len(groups[current])]
        return min(rivals, key=rank, default=current)
    return min(able or groups, key=rank, default=current)


def difference(kind: Kind, served: Kind) -> str | None:
    """Why a worker is left out; None when it is not."""
    if kind[0] != served[0]:
        return f"it serves {kind[0]}, and this cluster {served[0]}"
    if kind[1] != served[1]:
        return f"it speaks version {kind[1]} of the transfer protocol, and this cluster {served[1]}"
    return None
