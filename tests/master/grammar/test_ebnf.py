import pytest

from master.grammar.check import GrammarCheck
from master.grammar.ebnf import MAX_CHARACTERS, lark_of_ebnf
from protos.sampling_messages import Grammar, GrammarKind


async def test_what_it_becomes_can_be_compiled() -> None:
    """A11"""
    lark = lark_of_ebnf('root ::= answer ("," answer)*\nanswer ::= "yes" | "no" | [0-9]+')
    check = GrammarCheck()
    try:
        await check.check("ebnf", Grammar(GrammarKind.LARK, lark))
    finally:
        await check.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "root"),
        ('answer ::= "yes"', "root"),
        ("root ::= answer", "answer"),
        ("root ::= [a-", "end of input"),
        ("root ::= " + "(" * (MAX_CHARACTERS - 9), ""),
        ("x" * (MAX_CHARACTERS + 1), f"{MAX_CHARACTERS} are allowed"),
    ],
)
def test_what_is_no_grammar_is_told_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        lark_of_ebnf(text)
    assert problem in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) <= 500
