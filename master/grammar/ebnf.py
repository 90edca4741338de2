"""Grammars in GBNF, the EBNF of llama.cpp and SGLang, as Lark."""

from llguidance.gbnf_to_lark import gbnf_to_lark

from serving.foreign_code import guarded

# The conversion takes the square of the number of rules, and runs where everybody's requests are read.
MAX_CHARACTERS = 4096


def lark_of_ebnf(text: str) -> str:
    """Raises ValueError for what is no such grammar, and for one that is too long."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    with guarded(lambda error: ValueError(" ".join(str(error).split())[:500])):
        return gbnf_to_lark(text)
