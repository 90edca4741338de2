import pytest

from master.parsing.formats import choose_parsers
from master.parsing.mistral import MISTRAL, MISTRAL_ARRAY
from tests.master.parsing.answers import Call, read

HERMES_TEMPLATE = 'return a json object within <tool_call></tool_call> tags {%- if "</think>" in content %}'
LLAMA_TEMPLATE = (
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
)
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        (HERMES_TEMPLATE, "hermes", "<think>"),
        ("<tool_call>\n<function=name>\n</function>", "qwen3_xml", None),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key><think></think>", "glm45", "<think>"),
        ("<\uff5ctool\u2581call\u2581begin\uff5c>' + tool['type'] + '\\n```json", "deepseek", None),
        ("<|tool_call_begin|>{{ id }}<think></think>", "kimi_k2", "<think>"),
        ("<|channel|>analysis<|message|>", "harmony", "<|channel|>analysis<|message|>"),
        ("in the format of [func_name1(params_name1=params_value1)]", "pythonic", None),
        (LLAMA_TEMPLATE, "llama3_json", None),
        ("{{- '<|python_tag|>' }}", "llama3_json", None),
        ("[TOOL_CALLS][{...}] [THINK]{{ thinking }}[/THINK]", "mistral", "[THINK]"),
        ("{{ messages }}", None, None),
        (None, None, None),
    ],
)
def test_auto_tells_from_the_template(template: str | None, calls: str | None, reasoning: str | None) -> None:
    choice = choose_parsers("auto", "auto", template)
    assert (choice.calls and choice.calls.name) == calls
    assert (choice.reasoning and choice.reasoning.open) == reasoning


def test_a_name_counts_more_than_the_template() -> None:
    choice = choose_parsers("llama3_json", "none", HERMES_TEMPLATE)
    assert choice.calls is not None and choice.calls.name == "llama3_json"
    assert choice.reasoning is None
    assert choose_parsers("none", "think", HERMES_TEMPLATE).calls is None


def test_unknown_names_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="'xml'; it must be one of auto, none, hermes, qwen3_xml, glm45"):
        choose_parsers("xml", "none", None)
    with pytest.raises(ValueError, match="'r1'; it must be one of auto, none, think, mistral_think"):
        choose_parsers("none", "r1", None)


def test_what_mistral_is_made_to_write_follows_its_template() -> None:
    old = choose_parsers("mistral", "none", "[TOOL_CALLS] [{...}]").calls
    new = choose_parsers("auto", "none", "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}").calls
    unknown = choose_parsers("mistral", "none", None).calls
    assert (old, new, unknown) == (MISTRAL_ARRAY, MISTRAL, MISTRAL)


def test_a_parser_reads_reasoning_then_calls() -> None:
    choice = choose_parsers("auto", "auto", HERMES_TEMPLATE)
    answer = read(choice.new_parser("<think>\n", tools=()), f"Hm.</think>\n\nWell.\n{CALL}")
    assert (answer.reasoning, answer.content, answer.calls) == ("Hm.", "Well.", [Call("f", "{}")])


def test_without_tools_a_call_is_content() -> None:
    choice = choose_parsers("auto", "auto", HERMES_TEMPLATE)
    answer = read(choice.new_parser("", tools=None), CALL)
    assert (answer.content, answer.calls) == (CALL, [])
    assert choice.tags(has_tools=False) == ("<think>", "</think>")
    assert choice.tags(has_tools=True) == ("<think>", "</think>", "<tool_call>", "</tool_call>")


def test_none_passes_everything_on() -> None:
    parser = choose_parsers("none", "none", HERMES_TEMPLATE).new_parser("", tools=())
    assert read(parser, f"<think>Hm.</think>{CALL}").content == f"<think>Hm.</think>{CALL}"
    assert not parser.is_reasoning
