"""Makes a grammar that names the model's tokens one for the compiler, which knows bytes only."""

import re
from dataclasses import replace

from protos.sampling_messages import Grammar, GrammarKind

TOKEN = re.compile(r"<\[(\d{1,9})\]>")
# Token 255 of the byte tokenizer is a byte that no text has, as a special token is no text.
STAND_IN = "<[255]>"


def with_stand_ins(grammar: Grammar, vocab_size: int) -> Grammar:
    """Tokens of the vocabulary become one that the compiler knows; what is no token of it stays, and is refused."""
    if grammar.kind is not GrammarKind.LARK:
        return grammar

    def stand_in(found: re.Match[str]) -> str:
        return STAND_IN if int(found[1]) < vocab_size else found[0]

    return replace(grammar, text=TOKEN.sub(stand_in, grammar.text))
