"""OpenAI's `tools`: what a client lets the model call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# OpenAI's, and what names of MCP servers have besides
TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
MAX_TOOLS = 1024
NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolError(ValueError):
    """`field` is the path of what is wrong in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """`parameters` is the JSON schema of the arguments, of which it says that they are an object; it came at `path`."""

    name: str
    parameters: Mapping[str, object]
    path: str = field(default="", compare=False)


def read_tools(tools: Sequence[object]) -> tuple[ToolDefinition, ...]:
    """Raises ToolError naming the path of the first thing that is wrong."""
    if len(tools) > MAX_TOOLS:
        raise ToolError("tools", f"has {len(tools)} functions; at most {MAX_TOOLS} are allowed")
    definitions: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        definition = _read_tool(f"tools[{index}]", tool)
        if definition.name in definitions:
            first = list(definitions).index(definition.name)
            raise ToolError(f"tools[{index}].function.name", f"is {definition.name!r}, as is that of tools[{first}]")
        definitions[definition.name] = definition
    return tuple(definitions.values())


def _read_tool(where: str, tool: object) -> ToolDefinition:
    fields = _object(where, tool)
    if fields.get("type") != "function":
        raise ToolError(f"{where}.type", f"is {_shown(fields.get('type'))}; it must be function")
    function = _object(f"{where}.function", fields.get("function"))
    description, strict = function.get("description"), function.get("strict")
    if not isinstance(description, str | None):
        raise ToolError(f"{where}.function.description", f"is {_shown(description)}; it must be a string")
    if not isinstance(strict, bool | None):
        raise ToolError(f"{where}.function.strict", f"is {_shown(strict)}; it must be true or false")
    return ToolDefinition(
        _read_name(f"{where}.function.name", function.get("name")),
        _read_parameters(f"{where}.function.parameters", function.get("parameters")),
        f"{where}.function.parameters",
    )


def _read_name(where: str, name: object) -> str:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise ToolError(where, f"is {_shown(name)}; it must be 1 to 128 letters, digits or any of _ - . : /")
    return name


def _read_parameters(where: str, parameters: object) -> Mapping[str, object]:
    """No parameters means no arguments, as with OpenAI."""
    if parameters is None:
        return NO_ARGUMENTS
    schema = _object(where, parameters)
    if schema.get("type", "object") != "object":
        raise ToolError(f"{where}.type", f"is {_shown(schema['type'])}; it must be object, as arguments have names")
    if "properties" in schema:
        for name, member in _object(f"{where}.properties", schema["properties"]).items():
            if not isinstance(member, bool):
                _object(f"{where}.properties.{name[:100]}", member)
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ToolError(f"{where}.required", f"is {_shown(required)}; it must be a list of names")
    return {"type": "object", **schema}


def _object(where: str, value: object) -> dict[str, object]:
    if value is None:
        raise ToolError(where, "is missing")
    if not isinstance(value, dict):
        raise ToolError(where, f"is {_shown(value)}; it must be an object")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return "missing" if value is None else text if len(text) <= 100 else f"{text[:100]}…"
