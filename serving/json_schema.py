"""A JSON schema as it is compiled: only what says something of the value's form."""

import json
from collections.abc import Mapping

# What the grammar library keeps to. JSON Schema 2020-12, section 7.2.1: any other format is an annotation.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown")
)
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")
)
SCHEMAS_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
PLAIN_DATA = frozenset(("enum", "const", "required", "x-guidance"))


def compiled_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """A copy without annotations. Raises RecursionError for one that is nested too deep to be read."""
    kept = {name: value for name, value in schema.items() if not _is_annotation(name, value)}
    return {name: _compiled(name, value) for name, value in kept.items()}


def _is_annotation(name: str, value: object) -> bool:
    return name in ANNOTATIONS or (name == "format" and isinstance(value, str) and value not in FORMATS)


def _compiled(name: str, value: object) -> object:
    match value:
        case _ if name in PLAIN_DATA:
            return value
        case dict() if name in SCHEMAS_BY_NAME:
            return {key: _schema(member) for key, member in value.items()}
        case list():
            return [_schema(member) for member in value]
    return _schema(value)


def _schema(value: object) -> object:
    return compiled_schema(value) if isinstance(value, dict) else value


def dumped_schema(schema: Mapping[str, object]) -> str:
    """The schema as JSON, with characters as they are."""
    return json.dumps(schema, ensure_ascii=False)
