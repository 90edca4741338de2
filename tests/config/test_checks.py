from collections.abc import Callable

import pytest

from config import checks


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.between(0.5, 1.0), [0.5, 1.0], [0.4, 1.1]),
        (checks.at_least(1.0), [1.0], [0.9]),
        (checks.more_than(0.0), [0.1], [0.0, -1.0]),
    ],
)
def test_limits(check: Callable[[float], None], good: list[float], bad: list[float]) -> None:
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ValueError, match="must be"):
            check(value)


def test_port_0_is_a_port_to_listen_on() -> None:
    checks.port(0)
    checks.port(65535)
    with pytest.raises(ValueError, match="between 0 and 65535"):
        checks.port(65536)
