import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.text.reasoning_span import ReasoningSpan
from master.text.stop_strings import StopStrings
from master.text.text_stream import TextDelta, TextStream
from master.text.tokenizer import Tokenizer

KINDS = st.sampled_from(["byte level", "byte fallback", "sentencepiece"])
TEXTS = st.text("ab 你🙂", max_size=30)
STOPS = st.lists(st.text("ab 你🙂", min_size=1, max_size=3), max_size=3)


@given(kind=KINDS, text=TEXTS, stops=STOPS, include=st.booleans(), min_tokens=st.integers(0, 6), data=st.data())
def test_bursts_give_what_single_ids_give(
    tokenizers: dict[str, Tokenizer],
    kind: str,
    text: str,
    stops: list[str],
    include: bool,
    min_tokens: int,
    data: st.DataObject,
) -> None:
    output = tokenizers[kind].encode(text, add_special_tokens=False)

    def open_stream() -> TextStream:
        return TextStream(tokenizers[kind], [], stops=StopStrings(stops), include_stop=include, min_tokens=min_tokens)

    one_by_one, in_bursts = open_stream(), open_stream()
    single = [one_by_one.feed([token_id]) for token_id in output] + [one_by_one.finish()]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=5)))
    burst = [in_bursts.feed(output[start:end]) for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)] + [
        in_bursts.finish()
    ]
    assert summed(burst) == summed(single)


def summed(deltas: list[TextDelta]) -> tuple[str, int, str | None]:
    return (
        "".join(delta.text for delta in deltas),
        sum(delta.num_ids for delta in deltas),
        deltas[-1].matched_stop,
    )


@given(kind=KINDS, text=TEXTS, stops=STOPS, min_tokens=st.integers(0, 6))
def test_the_stop_ends_at_the_id_that_completes_it(
    tokenizers: dict[str, Tokenizer], kind: str, text: str, stops: list[str], min_tokens: int
) -> None:
    tokenizer = tokenizers[kind]
    output = tokenizer.encode(text, add_special_tokens=False)
    prefixes = [tokenizer.decode(output[:size], True).rstrip("\ufffd") for size in range(len(output) + 1)]
    completing = next(
        (
            size
            for size in range(min_tokens + 1, len(output) + 1)
            if any(
                prefixes[size][:end].endswith(stop)
                for stop in stops
                for end in range(len(prefixes[size - 1]) + 1, len(prefixes[size]) + 1)
            )
        ),
        None,
    )
    delta = TextStream(tokenizer, [], stops=StopStrings(stops), min_tokens=min_tokens).feed(output)
    assert delta.num_ids == (len(output) if completing is None else completing)
    assert (delta.matched_stop is None) == (completing is None)


def ids_of_bytes(tokenizer: Tokenizer, text: bytes) -> list[int]:
    known = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [known[bytes([byte])] for byte in text]


def test_ids_after_the_stop_are_dropped(byte_level: Tokenizer) -> None:
    output = ids_of_bytes(byte_level, b"one.two.three")
    stream = TextStream(byte_level, [], stops=StopStrings(["o."]))
    assert stream.feed(output[:7]) == TextDelta("one.tw", 7)
    assert stream.feed(output[7:]) == TextDelta("", 1, "o.")
    assert stream.feed(output) == TextDelta("", 0, "o.")
    assert stream.finish() == TextDelta("", 0, "o.")


def test_min_tokens_passes_over_stops_completed_by_the_first_tokens(byte_level: Tokenizer) -> None:
    output = ids_of_bytes(byte_level, b"a.b.c.d")
    assert TextStream(byte_level, [], stops=StopStrings(["."]), min_tokens=4).feed(output).num_ids == 6
    assert TextStream(byte_level, [], stops=StopStrings(["."]), min_tokens=3).feed(output).num_ids == 4
    assert TextStream(byte_level, [], stops=StopStrings([".b."]), min_tokens=3).feed(output) == TextDelta("a", 4, ".b.")


def test_a_stop_within_a_character_of_many_tokens(byte_level: Tokenizer) -> None:
    output = ids_of_bytes(byte_level, "a🙂b".encode())
    delta = TextStream(byte_level, [], stops=StopStrings(["🙂"]), include_stop=True).feed(output)
    assert delta == TextDelta("a🙂", 5, "🙂")


def test_text_held_back_is_flushed_when_no_stop_follows(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, [], stops=StopStrings(["tail!", "\ufffd"]))
    assert stream.feed(ids_of_bytes(byte_level, b"a tail")).text == "a "
    assert stream.finish() == TextDelta("tail", 0)
    cut_short = TextStream(byte_level, [], stops=StopStrings(["\ufffd"]))
    assert cut_short.feed(ids_of_bytes(byte_level, b"a\xe4")) == TextDelta("a", 2)
    assert cut_short.finish() == TextDelta("", 0, "\ufffd")


@pytest.mark.parametrize("piece", [1, 3, 100])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_stop_counts_in_the_answer_only(byte_level: Tokenizer, piece: int, is_open: bool) -> None:
    """T1"""
    text = ("" if is_open else "\n<think>") + "a stop, </thin a stop</think>answer stop here"
    span = ReasoningSpan("<think>", "</think>", is_open)
    ids = byte_level.encode(text, add_special_tokens=False)
    stream = TextStream(byte_level, [], stops=StopStrings(["stop"]), reasoning=span)
    deltas = [stream.feed(ids[start : start + piece]) for start in range(0, len(ids), piece)]
    assert "".join(delta.text for delta in deltas) == text.removesuffix("stop here")
    assert deltas[-1].matched_stop == "stop"


@pytest.mark.parametrize("text", ["<thin stop", "stop", "an answer, <think>stop"])
def test_a_stop_counts_where_nothing_was_reasoned(byte_level: Tokenizer, text: str) -> None:
    """T1"""
    span = ReasoningSpan("<think>", "</think>", is_open=False)
    stream = TextStream(byte_level, [], stops=StopStrings(["stop"]), reasoning=span)
    delta = stream.feed(byte_level.encode(text, add_special_tokens=False))
    assert (delta.text, delta.matched_stop) == (text.removesuffix("stop"), "stop")


def test_what_may_open_reasoning_is_given_out_at_the_end(byte_level: Tokenizer) -> None:
    span = ReasoningSpan("<think>", "</think>", is_open=False)
    stream = TextStream(byte_level, [], stops=StopStrings(["nk"]), reasoning=span)
    assert stream.feed(byte_level.encode("<thin", add_special_tokens=False)).text == ""
    assert stream.finish().text == "<thin"
