"""The many spellings of "the output must match this": response_format, guided_*, structured_outputs, SGLang's."""

import msgspec

from master.edge.fields.nesting import check_nesting
from master.edge.fields.unsupported import UnsupportedFields
from master.errors import invalid
from master.grammar.ebnf import lark_of_ebnf
from protos.sampling_messages import Grammar, GrammarKind

ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    name: str | None = None
    schema: dict[str, object] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's successor of guided_*."""

    json: str | dict[str, object] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GrammarFields(UnsupportedFields, frozen=True, kw_only=True):
    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, object] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    def grammar(self) -> tuple[str, Grammar] | None:
        """(field that asks, what for). Raises ServingError if the schema is no JSON, or if more than one field asks."""
        wanted = self.structured_outputs or StructuredOutputs()
        grammars = {
            "response_format": grammar_of_format("response_format", self.response_format),
            "guided_json": _of_schema("guided_json", self.guided_json),
            "guided_regex": _of_text(GrammarKind.REGEX, self.guided_regex),
            "guided_choice": _of_choices("guided_choice", self.guided_choice),
            "guided_grammar": _of_text(GrammarKind.LARK, self.guided_grammar),
            "structured_outputs.json": _of_schema("structured_outputs.json", wanted.json),
            "structured_outputs.regex": _of_text(GrammarKind.REGEX, wanted.regex),
            "structured_outputs.choice": _of_choices("structured_outputs.choice", wanted.choice),
            "structured_outputs.grammar": _of_text(GrammarKind.LARK, wanted.grammar),
            "structured_outputs.json_object": ANY_OBJECT if wanted.json_object else None,
            "json_schema": _of_schema("json_schema", self.json_schema),
            "regex": _of_text(GrammarKind.REGEX, self.regex),
            "ebnf": _of_ebnf(self.ebnf),
        }
        asked = {field: grammar for field, grammar in grammars.items() if grammar is not None}
        if len(asked) > 1:
            fields = list(asked)
            raise invalid(fields[1], f"{' and '.join(fields)} are set; only one of them can be")
        return next(iter(asked.items()), None)


def grammar_of_format(field: str, response_format: ResponseFormat | None) -> Grammar | None:
    """None if any text will do. `field` is what the client calls it. Raises ServingError."""
    if response_format is None:
        return None
    match response_format.type:
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            asked = response_format.json_schema
            if asked is None or asked.schema is None:
                raise invalid(field, f"{field} has no schema")
            return _of_schema(field, asked.schema)
    raise invalid(field, f"{field}.type is {response_format.type[:100]!r}; it must be text, json_object or json_schema")


def _of_schema(field: str, schema: str | dict[str, object] | None) -> Grammar | None:
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            parsed: object = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(field, f"{field} is not valid JSON: {error}") from error
        check_nesting(field, parsed)
        return Grammar(GrammarKind.JSON_SCHEMA, schema)
    check_nesting(field, schema)
    return Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(schema).decode())


def _of_choices(field: str, choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    if not choices:
        raise invalid(field, f"{field} is empty; it must have at least one choice")
    return Grammar(GrammarKind.CHOICE, choices=tuple(choices))


def _of_ebnf(text: str | None) -> Grammar | None:
    if text is None:
        return None
    try:
        return Grammar(GrammarKind.LARK, lark_of_ebnf(text))
    except ValueError as error:
        raise invalid("ebnf", f"ebnf cannot be used: {error}") from error


def _of_text(kind: GrammarKind, text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind, text)
