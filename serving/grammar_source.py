"""A grammar as llguidance takes it, the same where a master checks it and where a worker keeps to it."""

import json

from llguidance import LLMatcher, LLParserLimits

from protos.sampling_messages import Grammar, GrammarKind
from serving.json_schema import compiled_schema, dumped_schema

MAX_CHARACTERS = 128 * 1024
MAX_SOURCE_CHARACTERS = 1 << 20  # what is read in milliseconds
MAX_CHOICES = 10_000


def grammar_source(grammar: Grammar) -> str:
    """Not compiled yet. Raises ValueError for a schema that is no JSON object, and for anything too long; what only
    describes a schema does not count.

    JSON gets no optional whitespace, unless the schema's own `x-guidance` asks for it: an unlikely model would pad
    for ever.
    """
    if len(grammar.text) > MAX_SOURCE_CHARACTERS:
        raise ValueError(
            f"{len(grammar.text)} characters; at most {MAX_SOURCE_CHARACTERS} are allowed, descriptions too"
        )
    text = _compiled(grammar.text) if grammar.kind is GrammarKind.JSON_SCHEMA else grammar.text
    num_characters = len(text) + sum(map(len, grammar.choices))
    if num_characters > MAX_CHARACTERS:
        raise ValueError(f"{num_characters} characters; at most {MAX_CHARACTERS} are allowed")
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = "{}" if text.strip() == "true" else text
            return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.CHOICE:
            if not 0 < len(grammar.choices) <= MAX_CHOICES:
                raise ValueError(f"{len(grammar.choices)} choices; there must be 1 … {MAX_CHOICES}")
            return LLMatcher.grammar_from_regex("|".join(map(_literal, grammar.choices)))


def parser_limits() -> LLParserLimits:
    """A lexer state takes a kilobyte or two; the other defaults keep one step to milliseconds as a rule."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def grammar_problem(matcher: LLMatcher) -> str:
    """The matcher's error in one line, empty where there is none."""
    error = " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())
    return "no text can match it" if error.startswith("NoExtension") else error[:500]


def _compiled(schema: str) -> str:
    """Without its annotations; text that is no schema is left for the compiler to say so."""
    try:
        parsed: object = json.loads(schema)
        return dumped_schema(compiled_schema(parsed)) if isinstance(parsed, dict) else schema
    except ValueError:
        return schema
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _literal(text: str) -> str:
    """A regex for exactly this text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)
