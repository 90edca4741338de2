import pytest

from master.errors import ServingError
from master.grammar.check import GrammarCheck
from master.grammar.token_ids import with_stand_ins
from protos.sampling_messages import Grammar, GrammarKind


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


async def test_a_grammar_that_names_tokens_of_the_vocabulary_can_be_checked() -> None:
    """T7: a tag that is a token of a real model has an id far beyond those of bytes."""
    check = GrammarCheck()
    try:
        named = lark('start: r0 <[151668]> "a"\nr0[max_tokens=5]: /(?s:.*)/\n')
        await check.check("grammar", with_stand_ins(named, vocab_size=151_936))
        with pytest.raises(ServingError, match="grammar cannot be used"):
            await check.check("grammar", with_stand_ins(named, vocab_size=1000))
    finally:
        await check.close()


def test_other_kinds_are_left_alone() -> None:
    regex = Grammar(GrammarKind.REGEX, "<[0-9]>")
    assert with_stand_ins(regex, 10) == regex
