import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.text.stop_strings import StopMatcher, StopStrings

LETTERS = st.text("ab🙂é", max_size=24)
STOPS = st.lists(st.text("ab🙂é", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include_stop else end - len(stop)], stop
    return text, None


def longest_beginning_of_a_stop(text: str, stops: list[str]) -> int:
    return max((size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])), default=0)


@given(text=LETTERS, stops=STOPS, include_stop=st.booleans(), data=st.data())
def test_result_is_that_of_the_whole_text_however_it_is_cut(
    text: str, stops: list[str], include_stop: bool, data: st.DataObject
) -> None:
    matcher = StopMatcher(StopStrings(stops), include_stop)
    released, fed, matched = "", 0, None
    while fed < len(text) and matched is None:
        end = data.draw(st.integers(fed, len(text)))
        outcome = matcher.feed(text[fed:end])
        released, fed, matched = released + outcome.text, end, outcome.matched_stop
        if matched is None:
            assert released == text[: fed - longest_beginning_of_a_stop(text[:fed], stops)]
    if matched is None:
        released += matcher.flush()
    assert (released, matched) == naive(text, stops, include_stop)


@given(before=LETTERS, after=LETTERS, stops=STOPS, include_stop=st.booleans())
def test_stops_that_end_where_none_may_match_are_passed_over(
    before: str, after: str, stops: list[str], include_stop: bool
) -> None:
    matcher = StopMatcher(StopStrings(stops), include_stop)
    released = "".join(matcher.feed(character, can_match=False).text for character in before)
    matched = None
    for character in after:
        outcome = matcher.feed(character)
        released, matched = released + outcome.text, outcome.matched_stop
        if matched is not None:
            break
    released += matcher.flush() if matched is None else ""
    text = before + after
    expected: tuple[str, str | None] = (text, None)
    for end in range(len(before) + 1, len(text) + 1):
        found = max((stop for stop in stops if text[:end].endswith(stop)), key=len, default=None)
        if found is not None:
            expected = (text[: end if include_stop else end - len(found)], found)
            break
    assert (released, matched) == expected


def test_a_stop_may_span_many_pieces() -> None:
    matcher = StopMatcher(StopStrings(["</tool>", "STOP"]), include_stop=False)
    outcomes = [matcher.feed(piece) for piece in ["a<", "/to", "x", "</t", "ool", "> b"]]
    assert [outcome.text for outcome in outcomes] == ["a", "", "</tox", "", "", ""]
    assert [outcome.matched_stop for outcome in outcomes] == [None, None, None, None, None, "</tool>"]


def test_the_stop_complete_first_wins_and_of_equals_the_longest() -> None:
    assert StopMatcher(StopStrings(["abcd", "bc"]), include_stop=False).feed("abcd").text == "a"
    assert StopMatcher(StopStrings(["c", "abc", "bc"]), include_stop=False).feed("xabc").matched_stop == "abc"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(StopStrings(["a", ""]), include_stop=False)
