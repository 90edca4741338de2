"""What the grammars let a model write, the format's parser reads as calls."""

import json
import random

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from master.parsing.answer_grammar import ReasoningBefore, bounded_reasoning, call_grammar, reasoned_grammar
from master.parsing.call_format import CallFormat
from master.parsing.formats import CALL_FORMATS, ParserChoice
from master.parsing.harmony import HARMONY
from master.parsing.hermes import HERMES
from master.parsing.mistral import MISTRAL
from master.parsing.reasoning import THINK
from master.parsing.tool_choice import read_tool_choice
from master.parsing.tool_definitions import read_tools
from protos.sampling_messages import Grammar, GrammarKind
from tests.master.parsing import written
from tests.master.parsing.answers import Answer, Call, read

TOOLS = read_tools(
    [
        {"type": "function", "function": {"name": "now"}},
        {
            "type": "function",
            "function": {
                "name": "get-weather",
                "parameters": {
                    "properties": {"city": {"$ref": "#/$defs/city"}, "day": {"type": "integer"}},
                    "required": ["city"],
                    "additionalProperties": False,
                    "$defs": {"city": {"enum": ["Zürich", 'a"\\</tool_call>']}},
                },
            },
        },
    ]
)
CITIES = ("Zürich", 'a"\\</tool_call>')
ALL_FORMATS = pytest.mark.parametrize("call_format", CALL_FORMATS)
# as templates write them, in the order of the table
WRITTEN = dict(
    zip(
        CALL_FORMATS,
        (
            written.hermes,
            written.qwen3_xml,
            written.glm45,
            written.glm47,
            written.mistral,
            written.mistral_array,
            written.deepseek_v31,
            written.deepseek_v3,
            written.kimi_k2,
            written.harmony,
            written.pythonic,
            written.llama3_json,
        ),
        strict=True,
    )
)
ONE_CALL_ONLY = (HARMONY,)  # a call ends the output
NAMED = {"type": "function", "function": {"name": "now"}}
MAX_BYTES = 4000


@pytest.fixture(scope="module")
def byte_tokenizer() -> LLTokenizer:
    """Token n is byte n."""
    return LLTokenizer("byte")


def grammar(
    call_format: CallFormat,
    choice: object,
    is_parallel: bool = True,
    reasoning: ReasoningBefore | None = None,
    marker_ids: dict[str, int] | None = None,
) -> Grammar:
    made = call_grammar(
        call_format,
        read_tool_choice(choice, TOOLS),
        is_parallel=is_parallel,
        reasoning=reasoning,
        marker_ids=marker_ids,
    )
    assert made is not None and made.kind is GrammarKind.LARK
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(made.text)) == ""
    return made


def matcher(tokenizer: LLTokenizer, made: Grammar) -> LLMatcher:
    return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(made.text))


def accepts(tokenizer: LLTokenizer, made: Grammar, text: str) -> bool:
    at = matcher(tokenizer, made)
    ids = list(text.encode())
    return at.try_consume_tokens(ids) == len(ids) and at.is_accepting()


def random_output(tokenizer: LLTokenizer, made: Grammar, seed: int) -> str:
    at = matcher(tokenizer, made)
    choose = random.Random(seed)
    written = bytearray()
    while len(written) < MAX_BYTES:
        mask = at.compute_bitmask()
        allowed = [token for token in range(256) if mask[token // 8] >> (token % 8) & 1]
        if not allowed or (at.is_accepting() and choose.random() < 0.3):
            return written.decode()
        token = choose.choice(allowed)
        assert at.consume_token(token)
        written.append(token)
    raise AssertionError(f"no end after {MAX_BYTES} bytes")


def read_calls(call_format: CallFormat, text: str) -> list[Call]:
    answer = read(ParserChoice(call_format).new_parser("", tools=TOOLS), text)
    assert answer.content == ""
    return answer.calls


@ALL_FORMATS
def test_whatever_the_grammar_allows_is_read_as_calls(byte_tokenizer: LLTokenizer, call_format: CallFormat) -> None:
    numbers = set()
    for seed in range(40):
        calls = read_calls(call_format, random_output(byte_tokenizer, grammar(call_format, "required"), seed))
        numbers.add(len(calls))
        for call in calls:
            arguments = json.loads(call.arguments)
            assert arguments == {} if call.name == "now" else arguments["city"] in CITIES
    assert 0 not in numbers
    assert len(numbers) > 1 or call_format in ONE_CALL_ONLY


@ALL_FORMATS
@pytest.mark.parametrize(("choice", "is_parallel"), [("required", False), (NAMED, True), (NAMED, False)])
def test_one_call_where_one_is_asked_for(
    byte_tokenizer: LLTokenizer, call_format: CallFormat, choice: object, is_parallel: bool
) -> None:
    made = grammar(call_format, choice, is_parallel)
    for seed in range(10):
        calls = read_calls(call_format, random_output(byte_tokenizer, made, seed))
        assert len(calls) == 1
        assert choice == "required" or calls[0].name == "now"


@ALL_FORMATS
def test_what_templates_write_is_allowed(byte_tokenizer: LLTokenizer, call_format: CallFormat) -> None:
    made = grammar(call_format, "required")
    call = Call("get-weather", '{"city": "Zürich", "day": 3}')
    text = WRITTEN[call_format]([call] if call_format in ONE_CALL_ONLY else [call, call])
    assert accepts(byte_tokenizer, made, text)
    assert not accepts(byte_tokenizer, made, f"Sure: {text}")
    assert not accepts(byte_tokenizer, made, text.replace("get-weather", "drop_table"))
    assert not accepts(byte_tokenizer, made, "")


@ALL_FORMATS
@pytest.mark.parametrize("is_open", [True, False])
def test_reasoning_may_precede_the_calls(byte_tokenizer: LLTokenizer, call_format: CallFormat, is_open: bool) -> None:
    tags = call_format.reasoning or THINK
    made = grammar(call_format, "required", reasoning=ReasoningBefore(tags, is_open))
    calls = random_output(byte_tokenizer, grammar(call_format, "required"), seed=1)
    reasoning = f"Which < city?{tags.close}" + (tags.before_answer or "\n\n")
    written = reasoning if is_open else tags.open + reasoning
    assert accepts(byte_tokenizer, made, written + calls)
    assert accepts(byte_tokenizer, made, calls) is not is_open
    assert not accepts(byte_tokenizer, made, written)
    if is_open and call_format.reasoning is not None:
        written = tags.open + written  # never open in the prompt
    parser = ParserChoice(call_format, tags).new_parser(tags.open if is_open else "", tools=TOOLS)
    answer: Answer = read(parser, written + calls)
    assert answer.reasoning == "Which < city?"
    assert answer.calls == read_calls(call_format, calls)


def test_tags_that_are_special_tokens_are_written_as_those() -> None:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    special = ["<eos>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=special))
    tokenizer = LLTokenizer(library.to_str(), eos_token=0)
    ids = {token: token_id for token, token_id in library.get_vocab().items() if token in special}

    def allows(made: Grammar, token_ids: list[int]) -> bool:
        at = matcher(tokenizer, made)
        return at.try_consume_tokens(token_ids) == len(token_ids) and at.is_accepting()

    calls = library.encode("[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}").ids
    assert allows(grammar(MISTRAL, "required", marker_ids=ids), calls)
    assert not allows(grammar(MISTRAL, "required"), calls)
    thought = library.encode("Hm.</think>\n").ids
    for is_open in (True, False):
        made = grammar(MISTRAL, "required", reasoning=ReasoningBefore(THINK, is_open), marker_ids=ids)
        assert allows(made, ([] if is_open else [ids["<think>"]]) + thought + calls)
        assert not allows(made, thought[:-2] + calls)


def test_whitespace_in_arguments_is_bounded(byte_tokenizer: LLTokenizer) -> None:
    made = grammar(HERMES, NAMED)
    assert not accepts(byte_tokenizer, made, '<tool_call>\n{"name": "now", "arguments": { }}\n</tool_call>')
    assert accepts(byte_tokenizer, made, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')


@pytest.fixture(scope="module")
def thinking_library() -> Tokenizer:
    """Bytes, and tags that are tokens but not special ones, as Qwen's."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<eos>"]))
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    library.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return library


def accepts_text(library: Tokenizer, made: Grammar, text: str) -> bool:
    at = matcher(LLTokenizer(library.to_str(), eos_token=library.token_to_id("<eos>")), made)
    ids = library.encode(text).ids
    return at.try_consume_tokens(ids) == len(ids) and at.is_accepting()


def markers(library: Tokenizer) -> dict[str, int]:
    return {token.content: token_id for token_id, token in library.get_added_tokens_decoder().items()}


CLIENTS_GRAMMARS = [
    (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "description": "d"}'), '{"a":1}', "a"),
    (Grammar(GrammarKind.REGEX, "a/b\n[0-9]+"), "a/b\n12", "a"),
    (Grammar(GrammarKind.CHOICE, choices=('say "yes"', "no")), 'say "yes"', "yes"),
    (Grammar(GrammarKind.LARK, 'start: "{" word "}"\nword: /[a-z]+/\n'), "{ab}", "ab"),
]


@pytest.mark.parametrize(("grammar_", "right", "wrong"), CLIENTS_GRAMMARS)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_clients_grammar_begins_after_the_reasoning(
    thinking_library: Tokenizer, grammar_: Grammar, right: str, wrong: str, is_open: bool
) -> None:
    """T7"""
    made = reasoned_grammar(grammar_, ReasoningBefore(THINK, is_open, max_tokens=6), markers(thinking_library))
    thought = ("" if is_open else "<think>") + "Hm?\n</think>\n\n"
    assert accepts_text(thinking_library, made, thought + right)
    assert not accepts_text(thinking_library, made, thought + wrong)
    assert accepts_text(thinking_library, made, right) is not is_open
    assert not accepts_text(thinking_library, made, thought.replace("Hm?", "Hmmmmmmm?") + right)


@pytest.mark.parametrize("is_open", [True, False])
def test_reasoning_ends_in_time_and_any_answer_follows(thinking_library: Tokenizer, is_open: bool) -> None:
    """T7: thinking_token_budget"""
    reasoning = ReasoningBefore(THINK, is_open, max_tokens=4)
    made = bounded_reasoning(reasoning, ("<tool_call>", "</tool_call>"), markers(thinking_library))
    opening = "" if is_open else "<think>"
    for thought in ("", "1234"):
        for answer in ("", "Yes, so it is.", 'Well\n<tool_call>\n{"name": "f"}\n</tool_call>'):
            assert accepts_text(thinking_library, made, f"{opening}{thought}</think>{answer}")
    assert not accepts_text(thinking_library, made, f"{opening}12345</think>")
    assert accepts_text(thinking_library, made, "at once") is not is_open


def test_a_budget_of_nothing_leaves_no_reasoning(thinking_library: Tokenizer) -> None:
    none = markers(thinking_library)
    made = bounded_reasoning(ReasoningBefore(THINK, is_open=True, max_tokens=0), (), none)
    assert accepts_text(thinking_library, made, "</think>Yes") and not accepts_text(thinking_library, made, "a</think>")
    made = bounded_reasoning(ReasoningBefore(THINK, is_open=False, max_tokens=0), (), none)
    assert accepts_text(thinking_library, made, "Yes") and not accepts_text(thinking_library, made, "<think></think>")


def test_calls_are_demanded_of_a_model_whose_tags_are_tokens_but_not_special(thinking_library: Tokenizer) -> None:
    made = grammar(HERMES, "required", marker_ids=markers(thinking_library))
    assert accepts_text(thinking_library, made, written.hermes([Call("now", "{}")]))
