"""The flags that say how patient a master is with its workers, and how often it tries again."""

from dataclasses import dataclass

from config import checks
from config.flags import flag


@dataclass(frozen=True)
class DispatchFlags:
    max_requests: int = flag(
        1024, "Requests in flight; more are refused with 429", group="Scheduling", check=checks.at_least(1)
    )
    route_timeout_s: float = flag(
        10.0,
        "How long a new request waits for a worker that could take it; then 503",
        group="Scheduling",
        unit="s",
        check=checks.at_least(0.0),
    )
    max_waiting_requests: int = flag(
        256, "New requests that may wait so; more get 503 at once", group="Scheduling", check=checks.at_least(0)
    )
    resume_timeout_s: float = flag(
        60.0,
        "How long a request that has begun waits for a worker to go on with",
        group="Scheduling",
        unit="s",
        check=checks.at_least(0.0),
    )
    role_fallback: bool = flag(True, "Any worker serves rather than nobody when a role is missing", group="Scheduling")
    role_grace_s: float = flag(
        30.0,
        "How long a cluster that starts waits for all roles before that",
        group="Scheduling",
        unit="s",
        check=checks.at_least(0.0),
    )
    retry_share: float = flag(
        0.1,
        "Share of requests that may be tried again after an engine failed them; lost workers cost nothing",
        group="Scheduling",
        check=checks.between(0.0, 1.0),
    )
    retry_burst: int = flag(10, "Such retries in hand after a quiet time", group="Scheduling", check=checks.at_least(0))
    blame_timeout_s: float = flag(
        0.5,
        "How long a failed transfer waits for word that the prefill worker is lost",
        group="Operation",
        unit="s",
        check=checks.at_least(0.0),
    )
