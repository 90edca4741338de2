import math

import pytest

from protos.option import Allowed, Label, Range, Texts, TokenIds


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "told"),
    [
        (Range(0, 2), [0, 2, 0.5], [-1, 2.5, math.nan, math.inf, True, "1", None], "0 … 2"),
        (Range(1), [1, 10**5000], [0, -(10**5000)], "at least 1"),
        (Range(0, excludes_low=True), [1e-300, math.inf], [0, -1], "more than 0"),
        (Range(0, 1, excludes_low=True), [1], [0, 1.5], "more than 0 and at most 1"),
        (Range(-(2**63), 2**63 - 1), [-(2**63)], [2**63], "-2^63 … 2^63-1"),
        (Texts(2, 3, 4), ["abc", ["a", "b"], []], ["", ["abcd"], ["a"] * 3, ["abc", "ab"], [1], 5], "up to 2"),
        (Label(3), ["", "abc"], ["abcd", 5], "up to 3 characters"),
        (TokenIds(2), [[], [7, 8]], [[1, 2, 3], 5], "up to 2 tokens"),
        (TokenIds(2, Range(-1, 1)), [{}, {5: 1}], [{5: 2}, {1: 0, 2: 0, 3: 0}], "each -1 … 1"),
    ],
)
def test_what_is_allowed_is_told_and_kept(allowed: Allowed, good: list[object], bad: list[object], told: str) -> None:
    assert told in str(allowed)
    assert [allowed.problem(value) for value in good] == [None] * len(good)
    for value in bad:
        problem = allowed.problem(value)
        assert problem and len(problem) < 200, value
