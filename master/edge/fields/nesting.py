"""How deep a client's JSON may be nested where it is passed on as it came: to templates, to grammars."""

from master.errors import invalid

MAX_NESTING = 64


def check_nesting(field: str, value: object) -> None:
    """Raises ServingError when lists and objects lie more than MAX_NESTING deep in each other."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise invalid(field, f"{field} is nested more than {MAX_NESTING} levels deep")


def _inner(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
    return []
