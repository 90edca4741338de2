"""Puts a call's arguments together where a format writes each value by itself, as plain text.

Which of them is a string, a number or an object, only the tool's schema says. Strings go out as they come; what may be
something else once it is whole.
"""

import json
from collections.abc import Iterator, Mapping

from master.parsing.json_text import whole_json

MAX_REFERENCES = 16
# by how JSON of a kind begins
KINDS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


def kinds_of(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """The types a value may have by its schema; none if that does not say."""
    if depth > MAX_REFERENCES:
        return frozenset()
    match resolved(schema, root):
        case {"type": str(kind)}:
            return frozenset({kind})
        case {"type": list(kinds)}:
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        case {"enum": list(values)}:
            return frozenset(_kind(json.dumps(value)) for value in values)
        case {"const": value}:
            return frozenset({_kind(json.dumps(value))})
        case {"anyOf": list(choices)} | {"oneOf": list(choices)} | {"allOf": list(choices)}:
            return frozenset().union(*(kinds_of(choice, root, depth + 1) for choice in choices))
    return frozenset()


def resolved(schema: object, root: Mapping[str, object]) -> object:
    """What a reference within `root` leads to, or the schema itself."""
    for _ in range(MAX_REFERENCES):
        match schema:
            case {"$ref": str(reference)}:
                schema = root
                for name in reference.removeprefix("#").removeprefix("/").split("/"):
                    schema = schema.get(name) if isinstance(schema, Mapping) else None
            case _:
                break
    return schema


def properties_of(schema: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object], bool]]:
    """(name, schema, whether it is required) of each named argument. A schema keeps what its references lead to."""
    properties, required = schema.get("properties"), schema.get("required")
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    for name, member in properties.items() if isinstance(properties, Mapping) else ():
        described = member if isinstance(member, Mapping) else {}
        yield name, {**described, **definitions}, isinstance(required, list) and name in required


class TypedArguments:
    """An object's text, member by member; each method returns what it adds."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._schema = schema
        self._keys: set[str] = set()
        self._kinds: frozenset[str] = frozenset()
        self._whole: list[str] = []  # of a value that is not a string for sure
        self._is_skipped = False  # a key that was there before

    @property
    def _is_text(self) -> bool:
        return self._kinds == {"string"}

    def open(self) -> str:
        return "{"

    def begin(self, key: str) -> str:
        self._is_skipped = key in self._keys
        if self._is_skipped:
            return ""
        separator = ", " if self._keys else ""
        self._keys.add(key)
        properties = self._schema.get("properties")
        member = properties.get(key) if isinstance(properties, Mapping) else None
        self._kinds = kinds_of(member, self._schema)
        opening = f"{separator}{_quoted(key)}: "
        return opening + '"' if self._is_text else opening

    def text(self, text: str) -> str:
        if self._is_skipped:
            return ""
        if self._is_text:
            return _quoted(text)[1:-1]
        self._whole.append(text)
        return ""

    def end(self) -> str:
        if self._is_skipped:
            return ""
        if self._is_text:
            return '"'
        whole = "".join(self._whole)
        self._whole.clear()
        return self._value(whole)

    def close(self) -> str:
        return "}"

    def _value(self, written: str) -> str:
        value = whole_json(written)
        if value is None:
            return _quoted(written)
        kind = _kind(value)
        is_fitting = kind in self._kinds or (kind == "integer" and "number" in self._kinds)
        if kind == "string" and "string" in self._kinds:
            return _quoted(written)
        return value if is_fitting or not self._kinds or "string" not in self._kinds else _quoted(written)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _kind(value: str) -> str:
    number = "integer" if value.removeprefix("-").isdigit() else "number"
    return KINDS.get(value[:1], number)
