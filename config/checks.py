"""Checks of a flag's value, for `flag(check=…)`: each raises ValueError saying what the value must be."""

from collections.abc import Callable
from typing import TypeVar

from config.address import LARGEST_PORT

Number = TypeVar("Number", int, float)


def between(low: Number, high: Number) -> Callable[[Number], None]:
    def check(value: Number) -> None:
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")

    return check


def at_least(low: Number) -> Callable[[Number], None]:
    def check(value: Number) -> None:
        if value < low:
            raise ValueError(f"must be at least {low}")

    return check


def more_than(low: Number) -> Callable[[Number], None]:
    def check(value: Number) -> None:
        if value <= low:
            raise ValueError(f"must be more than {low}")

    return check


port = between(0, LARGEST_PORT)
"""A port to listen on; 0 picks a free one."""
