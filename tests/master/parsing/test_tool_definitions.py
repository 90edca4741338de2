import pytest

from master.parsing.tool_choice import ToolChoiceMode, read_tool_choice
from master.parsing.tool_definitions import NO_ARGUMENTS, ToolDefinition, ToolError, read_tools


def tool(**function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_tools_are_read() -> None:
    properties = {"a": {"type": "string"}, "b": True}
    schema = {"properties": properties, "required": ["a"]}
    tools = read_tools([tool(parameters=schema, description="d", strict=True), tool(name="files.read/x:1")])
    assert tools == (
        ToolDefinition("f", {"type": "object", "properties": properties, "required": ["a"]}),
        ToolDefinition("files.read/x:1", NO_ARGUMENTS),
    )


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (7, "tools[1]"),
        (None, "tools[1]"),
        ({"type": "web_search"}, "tools[1].type"),
        ({"function": {"name": "g"}}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": []}, "tools[1].function"),
        ({"type": "function", "function": {}}, "tools[1].function.name"),
        (tool(name=""), "tools[1].function.name"),
        (tool(name="two words"), "tools[1].function.name"),
        (tool(name='g"[ARGS]'), "tools[1].function.name"),
        (tool(name="g\n"), "tools[1].function.name"),
        (tool(name="g" * 129), "tools[1].function.name"),
        (tool(), "tools[1].function.name"),
        (tool(name="g", description=1), "tools[1].function.description"),
        (tool(name="g", strict="yes"), "tools[1].function.strict"),
        (tool(name="g", parameters="{}"), "tools[1].function.parameters"),
        (tool(name="g", parameters={"type": "array"}), "tools[1].function.parameters.type"),
        (tool(name="g", parameters={"type": ["object"]}), "tools[1].function.parameters.type"),
        (tool(name="g", parameters={"properties": []}), "tools[1].function.parameters.properties"),
        (tool(name="g", parameters={"properties": {"a": 1}}), "tools[1].function.parameters.properties.a"),
        (tool(name="g", parameters={"required": "a"}), "tools[1].function.parameters.required"),
        (tool(name="g", parameters={"required": [1]}), "tools[1].function.parameters.required"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(wrong: object, field: str) -> None:
    with pytest.raises(ToolError) as caught:
        read_tools([tool(), wrong])
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")


def test_long_values_are_not_repeated_whole() -> None:
    with pytest.raises(ToolError) as caught:
        read_tools([tool(name="x" * 1_000_000)])
    assert len(str(caught.value)) < 300


def test_a_choice_says_what_may_be_called() -> None:
    tools = read_tools([tool(), tool(name="g")])
    named = read_tool_choice({"type": "function", "function": {"name": "g"}}, tools)
    assert (named.mode, named.tools) == (ToolChoiceMode.NAMED, tools[1:])
    assert read_tool_choice("required", tools).tools == tools
    assert read_tool_choice(None, tools).mode is read_tool_choice("auto", tools).mode is ToolChoiceMode.AUTO
    assert read_tool_choice(None, ()).mode is read_tool_choice("auto", ()).mode is ToolChoiceMode.NONE
    assert read_tool_choice("none", tools).tools == ()


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ("any", "tool_choice"),
        (1, "tool_choice"),
        ({"type": "allowed_tools"}, "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "function", "function": {"name": "h"}}, "tool_choice.function.name"),
    ],
)
def test_other_choices_are_refused(choice: object, field: str) -> None:
    with pytest.raises(ToolError) as caught:
        read_tool_choice(choice, read_tools([tool()]))
    assert caught.value.field == field


def test_a_call_cannot_be_required_without_tools() -> None:
    with pytest.raises(ToolError, match="there are no tools"):
        read_tool_choice("required", ())


def test_very_many_tools_are_refused() -> None:
    """C2"""
    with pytest.raises(ToolError, match="tools has 1025 functions; at most 1024"):
        read_tools([{"type": "function", "function": {"name": f"f{number}"}} for number in range(1025)])


def test_allowed_tools_are_those_that_are_named() -> None:
    tools = read_tools([{"type": "function", "function": {"name": name}} for name in "abc"])
    named = [{"type": "function", "function": {"name": name}} for name in "ca"]
    choice = read_tool_choice({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}, tools)
    assert choice.mode is ToolChoiceMode.AUTO and [tool.name for tool in choice.tools] == ["c", "a"]
    for wrong in ({"mode": "none", "tools": named}, {"mode": "auto", "tools": [{"type": "function"}]}, {}):
        with pytest.raises(ToolError):
            read_tool_choice({"type": "allowed_tools", "allowed_tools": wrong}, tools)
