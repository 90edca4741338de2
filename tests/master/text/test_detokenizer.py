import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.text.detokenizer import IncrementalDetokenizer
from master.text.tokenizer import Tokenizer

KINDS = st.sampled_from(["byte level", "byte fallback", "sentencepiece"])
PHRASES = st.sampled_from(["Hello world", "你好", "🙂", "👩‍👩‍👧", "e\u0301", "  ", "\n", "<|im_end|>", "</s>"])
TEXTS = st.lists(st.one_of(PHRASES, st.text(max_size=6)), min_size=1, max_size=8).map("".join)
IDS = st.lists(st.integers(0, 450), max_size=30)


@st.composite
def bursts(draw: st.DrawFn, length: int) -> list[slice]:
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=length)))
    return [slice(start, end) for start, end in zip([0, *cuts], [*cuts, length], strict=True)]


def stream(detokenizer: IncrementalDetokenizer, output: list[int], pieces: list[slice]) -> list[str]:
    return [*(detokenizer.push(output[piece]) for piece in pieces), detokenizer.finish()]


@given(kind=KINDS, output=IDS, skip=st.booleans(), data=st.data())
def test_deltas_of_any_ids_add_up_to_the_whole_decoding(
    tokenizers: dict[str, Tokenizer], kind: str, output: list[int], skip: bool, data: st.DataObject
) -> None:
    pieces = data.draw(bursts(len(output)))
    deltas = stream(IncrementalDetokenizer(tokenizers[kind], [], skip), output, pieces)
    assert "".join(deltas) == tokenizers[kind].decode(output, skip)


@given(kind=KINDS, prompt=IDS, output=IDS, skip=st.booleans(), data=st.data())
def test_output_goes_on_from_the_prompt(
    tokenizers: dict[str, Tokenizer], kind: str, prompt: list[int], output: list[int], skip: bool, data: st.DataObject
) -> None:
    tokenizer = tokenizers[kind]
    pieces = data.draw(bursts(len(output)))
    before = IncrementalDetokenizer(tokenizer, [], skip).push(prompt)
    deltas = "".join(stream(IncrementalDetokenizer(tokenizer, prompt, skip), output, pieces))
    has_output = any(token for token in output if tokenizer.decode([token, token], skip))
    assert before + deltas == tokenizer.decode(prompt + output, skip) or (not has_output and deltas == "")


@given(kind=KINDS, text=TEXTS)
def test_text_is_given_out_as_soon_as_its_bytes_are_whole(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    output = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=False)
    given_out = ""
    for index, token_id in enumerate(output):
        delta = detokenizer.push([token_id])
        assert "\ufffd" in text or "\ufffd" not in delta
        given_out += delta
        assert given_out == tokenizer.decode(output[: index + 1], False).rstrip("\ufffd") or "\ufffd" in text
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "sentencepiece"])
def test_characters_made_of_byte_tokens_come_whole(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    ids_of_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    deltas = [detokenizer.push([ids_of_bytes[bytes([byte])]]) for byte in "你好🙂".encode()]
    assert deltas == ["", "", "你", "", "", "好", "", "", "", "🙂"]
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "sentencepiece"])
def test_a_character_cut_short_is_flushed_as_decoding_would(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    ids_of_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    output = [ids_of_bytes[bytes([byte])] for byte in "你".encode() + "🙂".encode()[:3]]
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    assert detokenizer.push(output) == "你"
    assert detokenizer.finish() == tokenizer.decode(output, True).removeprefix("你") != ""


@pytest.mark.parametrize("kind", ["byte fallback", "sentencepiece"])
def test_the_first_space_stays_after_a_prompt_with_text(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    output = tokenizer.encode("Hello", add_special_tokens=False)
    begin = tokenizer.encode("<s>", add_special_tokens=False)[:1]
    prompt = begin + tokenizer.encode("fox", add_special_tokens=False)
    assert IncrementalDetokenizer(tokenizer, prompt).push(output) == " Hello"
    assert IncrementalDetokenizer(tokenizer, prompt + begin).push(output) == " Hello"
    assert IncrementalDetokenizer(tokenizer, begin).push(output) == "Hello"


def test_a_prompt_cut_within_a_character_adds_nothing_of_its_own(byte_level: Tokenizer) -> None:
    ids_of_bytes = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    first, second, third = (ids_of_bytes[bytes([byte])] for byte in "好".encode())
    end = byte_level.encode("<|im_end|>", add_special_tokens=False)
    assert "".join(stream(IncrementalDetokenizer(byte_level, [first, second]), [third], [slice(0, 1)])) == "好"
    assert "".join(stream(IncrementalDetokenizer(byte_level, [first, second]), end, [slice(0, 1)])) == ""
