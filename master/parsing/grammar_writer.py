"""Puts a grammar together, in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Iterable, Mapping

from protos.sampling_messages import Grammar, GrammarKind
from serving.json_schema import compiled_schema, dumped_schema

# As models write JSON in training. Whitespace left free lets an unlikely model write it for ever.
JSON_STYLE: Mapping[str, object] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# a client's own schema may say otherwise
DEFAULT_STYLE: Mapping[str, object] = {"whitespace_flexible": False}
ANY_TEXT = r"/(?s:.*)/"
# A limit on text without a token that ends it is one of characters, each a state of the lexer. A longer one is none.
MAX_COUNTED_CHARACTERS = 4096


class GrammarWriter:
    """Makes expressions, and keeps the rules that they name.

    `marker_ids` has the tokenizer's tokens that stand for a text as a whole: such a text is written as that token,
    since it can't come from other tokens.
    """

    def __init__(self, marker_ids: Mapping[str, int]) -> None:
        self._marker_ids = marker_ids
        self._rules: list[str] = []
        longest_first = sorted(marker_ids, key=len, reverse=True)
        self._markers = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if marker_ids else None

    def text(self, *texts: str) -> str:
        """Exactly these texts, one after another."""
        pieces = [piece for text in texts for piece in self._split(text)]
        return " ".join(self._piece(piece) for piece in pieces)

    def json(self, schema: Mapping[str, object]) -> str:
        """A JSON value, as models write it."""
        return self.schema({**schema, "x-guidance": JSON_STYLE})

    def schema(self, schema: Mapping[str, object]) -> str:
        """A JSON value. It is a grammar of its own, as a schema's references (#/$defs/…) count from its root."""
        styled = {"x-guidance": DEFAULT_STYLE, **compiled_schema(schema)}
        return self.rule(f"%json {dumped_schema(styled)}")

    def rule(self, expression: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def one_of(self, expressions: Iterable[str]) -> str:
        return self.rule(" | ".join(expressions))

    def one_or_more(self, expression: str, between: str = "") -> str:
        return f"{expression} ({between} {expression})*"

    def text_until(self, end: str, max_tokens: int | None = None) -> str:
        """Any text up to the first `end`, which it includes, and of at most so many tokens before that."""
        if max_tokens == 0:
            return self.text(end)
        if end in self._marker_ids:
            limit = "" if max_tokens is None else f"[max_tokens={max_tokens}]"
            return f"{self.rule(ANY_TEXT, limit)} {self._piece(end)}"
        is_counted = max_tokens is not None and max_tokens <= MAX_COUNTED_CHARACTERS
        text = f"/(?s:.{{0,{max_tokens}}})/" if is_counted else ANY_TEXT
        return self.rule(text, f"[suffix={json.dumps(end)}]")

    def grammar(self, start: str) -> Grammar:
        return Grammar(GrammarKind.LARK, "\n".join([f"start: {start}", *self._rules]) + "\n")

    def _split(self, text: str) -> list[str]:
        pieces = [text] if self._markers is None else self._markers.split(text)
        return [piece for piece in pieces if piece]

    def _piece(self, piece: str) -> str:
        token_id = self._marker_ids.get(piece)
        return json.dumps(piece) if token_id is None else f"<[{token_id}]>"
