"""Grammars are compiled by a real process of their own, which dies of the worst of them and is replaced."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from master.errors import ErrorKind, ServingError
from master.grammar.check import DEATH_VERDICT_S, TOO_COMPLEX, TOO_SLOW, GrammarCheck
from protos.sampling_messages import Grammar, GrammarKind

VALID = Grammar(GrammarKind.REGEX, "[a-z]+")


@pytest.fixture
async def grammar_check() -> AsyncIterator[GrammarCheck]:
    check = GrammarCheck()
    yield check
    await check.close()


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, value if isinstance(value, str) else json.dumps(value))


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def chain(length: int) -> Grammar:
    """A schema of one object in another, each by a $ref."""
    link = [{"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(length)]
    return schema({"$ref": "#/$defs/d0", "$defs": {f"d{n}": link[n] for n in range(length)} | {f"d{length}": {}}})


async def problem(check: GrammarCheck, grammar: Grammar) -> str:
    """The message of the refusal, checked to be one that names the field."""
    with pytest.raises(ServingError) as refused:
        await check.check("guided_thing", grammar)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST
    assert refused.value.field == "guided_thing"
    assert refused.value.message.startswith("guided_thing cannot be used: ")
    assert len(refused.value.message) < 1000 and "\n" not in refused.value.message
    return refused.value.message


GOOD = [
    VALID,
    regex("^\\d{3}-\\d{4}$"),
    regex(""),
    schema({}),
    schema("true"),
    schema({"type": "object"}),
    schema({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}),
    schema({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}),
    schema({"type": "string", "x-guidance": {"whitespace_flexible": True}}),
    schema({"enum": [f"value {n}" for n in range(5000)]}),
    schema('{"items":' * 60 + "{}" + "}" * 60),
    chain(50),
    lark('start: "a" start | "b"'),
    Grammar(GrammarKind.CHOICE, choices=("yes", "no", "", '"[quoted]"\n', "🙂")),
]

BAD = [
    schema("{"),
    schema("[]"),
    schema("false"),
    schema('"string"'),
    schema({"type": "foo"}),
    schema({"type": 5}),
    schema({"type": "string", "pattern": "(("}),
    schema({"$ref": "#/nowhere"}),
    schema({"$ref": "http://example.com/schema"}),
    schema({"$ref": "#"}),
    schema({"type": "integer", "minimum": 5, "maximum": 3}),
    schema({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    schema({"not": {"type": "string"}}),
    schema({"enum": []}),
    schema({"x-guidance": {"no such option": 1}}),
    regex("(("),
    regex("a{2,1}"),
    regex("(?=a)b"),
    regex(r"(a)\1"),
    regex("[^\\s\\S]"),
    regex("\ud800"),
    lark(""),
    lark("start: missing"),
    lark("start: start"),
    lark('begin: "a"'),
    lark("start: /((/"),
    Grammar(GrammarKind.CHOICE),
]

COSTLY = [
    schema("[" * 100_000),
    schema('{"items":' * 5000 + "{}" + "}" * 5000),
    schema({"enum": [f"value {n}" for n in range(100_000)]}),
    schema({"allOf": [{"anyOf": [{"properties": {f"p{i}_{j}": {}}} for j in range(4)]} for i in range(12)]}),
    schema({"type": "object", "properties": {f"p{n}": {"pattern": f"^[a-z]{{1,{n + 1}}}$"} for n in range(1500)}}),
    regex("(" * 20_000 + "a" + ")" * 20_000),
    regex("(a{1000}){1000}"),
    regex("a" * 200_000),
    lark("start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    Grammar(GrammarKind.CHOICE, choices=tuple(str(n) for n in range(20_000))),
]


async def test_what_can_be_kept_to_passes(grammar_check: GrammarCheck) -> None:
    for grammar in GOOD:
        await grammar_check.check("field", grammar)


async def test_what_is_wrong_is_refused_by_the_name_of_its_field(grammar_check: GrammarCheck) -> None:
    assert len(BAD) >= 20
    for grammar in BAD:
        assert not (await problem(grammar_check, grammar)).endswith((TOO_SLOW, TOO_COMPLEX)), grammar
    await grammar_check.check("field", VALID)


async def test_what_would_cost_too_much_is_refused(grammar_check: GrammarCheck) -> None:
    for grammar in COSTLY:
        await problem(grammar_check, grammar)
    await grammar_check.check("field", VALID)


async def test_a_chain_that_overflows_a_stack_kills_only_the_compiler(grammar_check: GrammarCheck) -> None:
    for length in (1000, 1100):
        assert (await problem(grammar_check, chain(length))).endswith(TOO_COMPLEX)
        await grammar_check.check("field", VALID)


async def test_what_compiles_for_too_long_is_stopped(grammar_check: GrammarCheck) -> None:
    slow = schema({"anyOf": [{"type": "integer", "multipleOf": 99_991 + 2 * n} for n in range(60)]})
    assert (await problem(grammar_check, slow)).endswith(TOO_SLOW)
    await grammar_check.check("field", VALID)


async def test_the_loop_runs_on_while_a_grammar_compiles(grammar_check: GrammarCheck) -> None:
    checks = asyncio.gather(*(grammar_check.check("field", g) for g in GOOD))
    num_turns = 0
    while not checks.done():
        await asyncio.sleep(0)
        num_turns += 1
    await checks
    assert num_turns > len(GOOD)


async def test_one_that_nobody_waits_for_any_more_leaves_no_answer_to_the_next(grammar_check: GrammarCheck) -> None:
    await grammar_check.check("field", VALID)
    abandoned = asyncio.create_task(grammar_check.check("field", regex("((")))
    await asyncio.sleep(0)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    await grammar_check.check("field", regex("[a-y]+"))
    assert "unclosed group" in await problem(grammar_check, regex("(("))


async def test_more_than_can_wait_are_turned_away(grammar_check: GrammarCheck) -> None:
    answers = await asyncio.gather(
        *(grammar_check.check("field", regex(f"a{{{n}}}")) for n in range(1, 101)), return_exceptions=True
    )
    refused = [answer for answer in answers if answer is not None]
    assert 0 < len(refused) < 100
    for refusal in refused:
        assert isinstance(refusal, ServingError) and refusal.kind is ErrorKind.OVERLOADED
        assert refusal.retry_after_s is not None
    await grammar_check.check("field", regex("a{100}"))


async def test_close_ends_the_compiler_and_may_be_called_without_one() -> None:
    check = GrammarCheck()
    await check.close()
    await check.check("field", VALID)
    await check.close()
    await check.close()


async def killed_while_it_compiles(
    check: GrammarCheck, grammar: Grammar, number: signal.Signals
) -> "asyncio.Task[None]":
    """The process that has the question stands still, so that the signal surely comes before the answer."""
    await check.check("field", VALID)
    assert check._process is not None
    pid = check._process.pid
    os.kill(pid, signal.SIGSTOP)
    checking = asyncio.create_task(check.check("field", grammar))
    await asyncio.sleep(0)
    os.kill(pid, number)
    with contextlib.suppress(ProcessLookupError):  # SIGKILL does not wait for it to go on
        os.kill(pid, signal.SIGCONT)
    return checking


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGPROF, signal.SIGKILL])
async def test_a_grammar_is_not_to_blame_for_one_death(
    grammar_check: GrammarCheck, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """R19: a fresh process has the last word."""
    await (await killed_while_it_compiles(grammar_check, regex("[b-z]+"), number))
    assert f"ended by {number.name}" in caplog.text


async def test_what_a_dying_process_says_is_logged(
    grammar_check: GrammarCheck, caplog: pytest.LogCaptureFixture
) -> None:
    """R19"""
    await problem(grammar_check, chain(1000))
    assert caplog.text.count("a process that compiles grammars ended by") == 2


async def test_a_verdict_that_comes_from_deaths_expires() -> None:
    """R19"""
    now_s = 0.0
    check = GrammarCheck(now=lambda: now_s)
    await problem(check, chain(1000))
    known = dict(check._verdicts)
    await problem(check, chain(1000))
    assert check._verdicts == known
    now_s = DEATH_VERDICT_S
    await problem(check, chain(1000))
    assert check._verdicts != known
    await check.close()


async def test_a_grammar_is_not_to_blame_where_every_process_dies(
    grammar_check: GrammarCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19: on a machine without memory, say, a harmless grammar ends them as well."""
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nread question\nkill -ABRT $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    with pytest.raises(ServingError) as caught:
        await grammar_check.check("grammar", regex("[a-z]+"))
    assert caught.value.kind is ErrorKind.INTERNAL
    monkeypatch.undo()
    await grammar_check.check("grammar", regex("[a-z]+"))  # nothing was concluded
