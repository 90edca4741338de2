"""Code that is not ours, and raises whatever comes to hand: libraries in other languages, models' own code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def guarded(refusal: Callable[[Exception], Exception]) -> Iterator[None]:
    """Whatever the code inside raises is raised as the one error that `refusal` makes of it."""
    try:
        yield
    except Exception as error:
        raise refusal(error) from error


def first_line(error: Exception) -> str:
    """What an error says, short enough for a line of ours."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
