"""The jinja2 environment chat templates are written for, with limits on what a template can cost.

It offers what transformers offers: trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`,
`tojson` that keeps HTML characters, and `generation` blocks.
"""

import json
from collections.abc import Callable
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARACTERS = 16 * 1024 * 1024
_MAX_EXPONENT = 64


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed, and refuses repetition and powers that would fill memory within one expression."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise SecurityError(f"a template may not raise to the power of {right}")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_length(len(sequence) * times)
        result: object = super().call_binop(context, operator, left, right)
        return result


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is only its body."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line_number = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line_number)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


def render_bounded(template: jinja2.Template, variables: dict[str, object]) -> str:
    """Raises SecurityError once the text is longer than MAX_RENDERED_CHARACTERS, else what the template raises."""
    parts: list[str] = []
    num_characters = 0
    for part in template.generate(variables):
        num_characters += len(part)
        _check_length(num_characters)
        parts.append(part)
    return "".join(parts)


def _check_length(num_characters: int) -> None:
    if num_characters > MAX_RENDERED_CHARACTERS:
        raise SecurityError(f"the chat template's text is longer than {MAX_RENDERED_CHARACTERS} characters")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
