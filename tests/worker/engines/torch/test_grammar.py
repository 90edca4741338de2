"""Outputs kept to a grammar: the weights are random, so that nothing but the grammar makes them valid."""

import dataclasses
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from protos.sampling_messages import FinishReason, Grammar, GrammarKind, SamplingParams
from protos.session_messages import ErrorCode, Stage
from tests.checkpoints import END, make_sentencepiece_checkpoint
from tests.worker.engines.torch.engine_rig import GREEDY, PATIENCE_S, Node, hand_off
from tests.worker.engines.torch.reference import prompt
from worker.engines.torch.grammar import GrammarError, Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "grün", "🙂"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICES = ("yes", "no", 'say "perhaps"\n', "größer", "🚀")


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        list(person) == ["name", "age", "tags"]
        and len(person["name"]) <= 12
        and 0 <= person["age"] <= 130
        and len(person["tags"]) <= 3
        and set(person["tags"]) <= {"red", "grün", "🙂"}
    )


def is_sum(text: str) -> bool:
    return re.fullmatch(r"[ab](\+[ab])*=c", text) is not None


GRAMMARS: dict[str, tuple[Grammar, Callable[[str], bool]]] = {
    "json_schema": (schema(SCHEMA), is_person),
    "json_object": (
        schema({"type": "object", "additionalProperties": {"type": "boolean"}}),
        lambda text: isinstance(json.loads(text), dict),
    ),
    "regex": (regex(r"[a-z]{3,9}-[0-9]{4}é?"), lambda text: bool(re.fullmatch(r"[a-z]{3,9}-[0-9]{4}é?", text))),
    "choice": (Grammar(GrammarKind.CHOICE, choices=CHOICES), lambda text: text in CHOICES),
    "lark": (Grammar(GrammarKind.LARK, 'start: sum "=c"\nsum: item | sum "+" item\nitem: "a" | "b"'), is_sum),
}


def sampling(grammar: Grammar, temperature: float = 1.0, **others: object) -> SamplingParams:
    default = SamplingParams(max_tokens=200, temperature=temperature, seed=11, stop_token_ids=(END,), grammar=grammar)
    return changed(default, others)


def changed(params: SamplingParams, others: Mapping[str, object]) -> SamplingParams:
    return dataclasses.replace(params, **others)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def decoder(tiny_llama: Path) -> Iterator[Node]:
    with Node(tiny_llama) as node:
        yield node


@pytest.fixture(scope="module")
def text_of(tiny_llama: Path) -> Callable[[list[int]], str]:
    tokenizer = Tokenizer.from_file(str(tiny_llama / "tokenizer.json"))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", GRAMMARS)
def test_whole_and_handed_off_outputs_match_and_are_equal(
    llama: Node, decoder: Node, text_of: Callable[[list[int]], str], name: str, temperature: float
) -> None:
    grammar, matches = GRAMMARS[name]
    # what closes is likelier, or a random model would not come to an end
    bias = {token_id: 5.0 for token_id in (END, *closing_ids(text_of))}
    params = sampling(grammar, temperature, logprobs=2, logit_bias=bias)
    indexes = (0, 1)
    whole = llama.run(prompt(40, 1), params, sequences=indexes)
    for index in indexes:
        assert matches(text_of(whole.token_ids[index])), text_of(whole.token_ids[index])
        assert whole.finish_reasons[index] is FinishReason.STOP
    prefilled, decoded = hand_off(llama, decoder, prompt(40, 1), params, sequences=indexes)
    assert decoded.token_ids == whole.token_ids
    assert decoded.logprobs == whole.logprobs
    assert decoded.finish_reasons == whole.finish_reasons
    assert prefilled.token_ids == {index: ids[:1] for index, ids in whole.token_ids.items()}
    if temperature > 0 and name in ("json_schema", "regex"):
        assert whole.token_ids[0] != whole.token_ids[1]


def closing_ids(text_of: Callable[[list[int]], str]) -> list[int]:
    return [token_id for token_id in range(512) if text_of([token_id]) in ('"', "}", "]", "=", ":", "t", "true")]


def test_a_hand_off_that_completes_the_grammar_needs_no_decode(llama: Node) -> None:
    outcome = llama.master.result(llama.start(prompt(40, 2), sampling(regex("a")), Stage.PREFILL))
    assert outcome.finish_reasons == {0: FinishReason.STOP} and len(outcome.token_ids[0]) == 1


@pytest.mark.parametrize("name", ["json_schema", "regex"])
def test_a_resumed_output_goes_on_in_its_grammar(llama: Node, decoder: Node, name: str) -> None:
    grammar, _ = GRAMMARS[name]
    ids = llama.run(prompt(40, 3), sampling(grammar)).token_ids[0]
    assert len(ids) > 4
    for num_known in (1, len(ids) // 2, len(ids) - 1):
        outcome = decoder.run(prompt(40, 3), sampling(grammar), output_ids=ids[:num_known])
        assert outcome.token_ids[0] == ids[num_known:]
        assert outcome.finish_reasons[0] is FinishReason.STOP
    _, decoded = hand_off(llama, decoder, prompt(40, 3), sampling(grammar), output_ids=ids[:3])
    assert decoded.token_ids[0] == ids[3:]


def test_preempted_outputs_stay_in_their_grammar(
    tiny_llama: Path, llama: Node, text_of: Callable[[list[int]], str]
) -> None:
    params = sampling(regex("[a-e ]{500}"), max_tokens=60)
    with Node(tiny_llama, num_blocks=12) as node:
        starts = [node.start(prompt(30 + index, 4), params) for index in range(5)]
        for start in starts:
            ids = node.master.result(start).token_ids[0]
            assert re.fullmatch("[a-e ]+", text_of(ids))
            assert ids == llama.run(start.prompt_ids, params).token_ids[0]
        assert node.engine.figures.num_preemptions > 0


def test_an_output_cut_short_says_so(llama: Node) -> None:
    outcome = llama.run(prompt(20, 5), sampling(regex("[a-z]{100}"), max_tokens=5))
    assert outcome.finish_reasons[0] is FinishReason.LENGTH and len(outcome.token_ids[0]) == 5


def test_a_grammar_that_can_only_end_ends_whatever_else_was_asked(
    llama: Node, text_of: Callable[[list[int]], str]
) -> None:
    ways: list[dict[str, object]] = [{}, {"min_tokens": 50}, {"stop_token_ids": ()}]
    for others in (*ways, {"min_tokens": 50, "stop_token_ids": ()}):
        outcome = llama.run(prompt(20, 6), changed(sampling(regex("[a-z]{3}")), others))
        assert re.fullmatch("[a-z]{3}", text_of(outcome.token_ids[0]))
        assert outcome.finish_reasons[0] is FinishReason.STOP
        assert END not in outcome.token_ids[0]
        # it shows only at the next step that nothing can follow
        late = Grammar(GrammarKind.LARK, 'start: "a" NEVER*\nNEVER: /b/ & /c/')
        outcome = llama.run(prompt(20, 6), changed(sampling(late), others))
        assert text_of(outcome.token_ids[0]) == "a" and outcome.token_ids[0][-1] == END
        assert outcome.finish_reasons[0] is FinishReason.STOP


def test_min_tokens_and_ignore_eos_prolong_what_can_go_on(llama: Node) -> None:
    likely_end = {END: 100.0}
    longer = llama.run(prompt(20, 7), sampling(regex("[a-z]*"), min_tokens=20, logit_bias=likely_end))
    assert len(longer.token_ids[0]) == 21 and longer.token_ids[0][-1] == END
    endless = llama.run(
        prompt(20, 7), sampling(regex("[a-z]*"), max_tokens=30, stop_token_ids=(), logit_bias=likely_end)
    )
    assert END not in endless.token_ids[0] and endless.finish_reasons[0] is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("grammar", "others"),
    [
        (regex("(("), {}),
        (schema({"type": "foo"}), {}),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), {}),
        (regex("(a{1000}){1000}"), {}),
        (regex("a"), {"bad_words_ids": ((67,),)}),
    ],
)
def test_a_grammar_that_fails_fails_only_its_own_leg(
    llama: Node, text_of: Callable[[list[int]], str], grammar: Grammar, others: dict[str, object]
) -> None:
    assert text_of([67]) == "a"
    neighbour = llama.start(prompt(20, 8), dataclasses.replace(GREEDY, max_tokens=40))
    failing = llama.start(prompt(21, 8), changed(sampling(grammar), others))
    assert llama.master.failure(failing.leg).code is ErrorCode.INVALID_ARGUMENT
    assert llama.master.failure(failing.leg).message.startswith("grammar: ")
    assert len(llama.master.result(neighbour).token_ids[0]) == 40


def test_output_that_is_not_of_the_grammar_is_refused(llama: Node) -> None:
    start = llama.start(prompt(20, 9), sampling(regex("[0-9]+")), output_ids=[67])
    assert llama.master.failure(start.leg).code is ErrorCode.INVALID_ARGUMENT


def test_a_model_without_a_tokenizer_serves_all_but_grammars(tiny_llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    with Node(folder) as node:
        start = node.start(prompt(20, 10), sampling(regex("a")))
        failure = node.master.failure(start.leg)
        assert failure.code is ErrorCode.INVALID_ARGUMENT and "tokenizer" in failure.message
        assert len(node.run(prompt(20, 10)).token_ids[0]) == GREEDY.max_tokens


def test_sentencepiece_models_keep_to_grammars_too(tmp_path: Path) -> None:
    folder = make_sentencepiece_checkpoint(tmp_path / "sentencepiece", 0)
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto((folder / "tokenizer.model").read_bytes())
    grammar = regex("the [0-9]{2} 你好🙂[a-z é]{3,20}!")
    with Node(folder) as node:
        for temperature in (0.0, 1.0):
            ids = node.run(prompt(20, 11), sampling(grammar, temperature)).token_ids[0]
            text = str(processor.decode(ids))
            assert re.fullmatch(grammar.text, text), text


def allowed_after(grammars: Grammars, grammar: Grammar, stop_ids: tuple[int, ...], output_ids: list[int]) -> set[int]:
    logits = torch.zeros(600)  # more than the tokenizer has
    grammars.matcher(grammar, stop_ids).restrict(logits, output_ids)
    return set(torch.isfinite(logits).nonzero()[:, 0].tolist())


def test_an_end_is_allowed_exactly_where_the_grammar_may_end(
    tiny_llama: Path, text_of: Callable[[list[int]], str]
) -> None:
    id_of = {text_of([token_id]): token_id for token_id in range(3, 512)}
    a, b, z = id_of["a"], id_of["b"], id_of["z"]
    grammars = Grammars(tiny_llama, [END])
    ab = regex("[ab]{2,3}")
    assert END not in allowed_after(grammars, ab, (END, z), [])
    assert END not in allowed_after(grammars, ab, (END, z), [a])
    # a stop id that is text must be in the grammar; the ids of no text at all may be an end in another file
    assert allowed_after(grammars, ab, (END, z, b, 599, 10**6), [a, b]) == {END, a, b, 599}
    assert allowed_after(grammars, ab, (), [a, b]) == {a, b}
    assert allowed_after(grammars, ab, (END,), [a, b, a]) == {END}
    assert allowed_after(grammars, ab, (), [a, b, a]) == {END}
    with pytest.raises(GrammarError, match="grammar"):
        allowed_after(grammars, ab, (END,), [a, z])
    grammars.close()


def test_a_matcher_follows_the_output_however_it_grows(tiny_llama: Path) -> None:
    grammars = Grammars(tiny_llama, [END])
    grammar = regex("[a-z]{1,40}")
    step_by_step = grammars.matcher(grammar, (END,))
    ids: list[int] = []
    for _ in range(12):
        logits, other = torch.zeros(512), torch.zeros(512)
        step_by_step.restrict(logits, ids)
        grammars.matcher(grammar, (END,)).restrict(other, ids)
        assert torch.equal(logits, other)
        ids.append(int(torch.isfinite(logits[3:]).nonzero()[len(ids), 0]) + 3)
        assert not step_by_step.is_complete(ids)
    grammars.close()


def test_json_has_no_whitespace_unless_its_schema_wants_it(
    tiny_llama: Path, text_of: Callable[[list[int]], str]
) -> None:
    id_of = {text_of([token_id]): token_id for token_id in range(3, 512)}
    grammars = Grammars(tiny_llama, [END])
    for options, has_space in (({}, False), ({"x-guidance": {"whitespace_flexible": True}}, True)):
        array = schema({"type": "array", "items": {"type": "boolean"}, **options})
        texts = {text_of([token_id]) for token_id in allowed_after(grammars, array, (END,), [id_of["["]])}
        assert ("]" in texts, " " in texts) == (True, has_space)
    grammars.close()


def test_whatever_compiling_a_grammar_raises_is_its_request_s_alone(
    llama: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(grammar: Grammar) -> str:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("worker.engines.torch.grammar.grammar_source", broken)
    start = llama.start(prompt(10), dataclasses.replace(GREEDY, grammar=regex("never seen before")))
    failure = llama.master.failure(start.leg)
    assert failure.code is ErrorCode.INVALID_ARGUMENT and "no such luck" in failure.message
    assert llama.run(prompt(10)).failure is None


def test_a_grammar_that_is_not_compiled_yet_keeps_nobody_else_waiting(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21"""
    may_compile = threading.Event()
    compile_grammar = Grammars._compile

    def held(grammars: Grammars, grammar: Grammar) -> LLMatcher:
        assert may_compile.wait(PATIENCE_S)
        return compile_grammar(grammars, grammar)

    monkeypatch.setattr(Grammars, "_compile", held)
    choice = Grammar(GrammarKind.CHOICE, choices=("5",))
    with Node(tiny_llama) as node:
        running = node.start(prompt(10), dataclasses.replace(GREEDY, max_tokens=200))
        waiting = node.start(prompt(11), dataclasses.replace(GREEDY, grammar=choice))
        gone = node.start(prompt(12), dataclasses.replace(GREEDY, grammar=choice))
        assert len(node.master.result(running).token_ids[0]) == 200
        node.cancel(gone)
        node.flush()
        assert node.master.outcome(waiting.leg).started is None
        may_compile.set()
        assert node.master.result(waiting).failure is None
