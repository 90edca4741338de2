from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.value import BYTES, Kind, Value


class Backend(Enum):
    SHARED_MEMORY = "shm"
    TCP = "tcp"


SIZE = Kind.of(int, BYTES)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("4GiB", 4 * 2**30),
        ("4gib", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        ("4Gi", 4 * 2**30),
        ("512MB", 512 * 10**6),
        ("0.5KiB", 512),
        ("1kB", 1000),
        ("10B", 10),
        ("2TiB", 2**41),
    ],
)
def test_sizes_take_units(text: str, num_bytes: int) -> None:
    assert SIZE.read(text) == num_bytes


@pytest.mark.parametrize("text", ["", "-1", "4G", "GiB", "1.GiB", "0.1B", "4GiBs", "1e9", "٤GiB", " 4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        SIZE.read(text)


@given(st.integers(0, 2**60))
def test_a_shown_size_reads_back_as_itself(num_bytes: int) -> None:
    assert SIZE.read(SIZE.show(num_bytes)) == num_bytes


@given(
    st.sampled_from(
        [
            (Kind.of(bool, None), st.booleans()),
            (Kind.of(int, None), st.integers()),
            (Kind.of(float, None), st.floats(allow_nan=False, allow_infinity=False)),
            (Kind.of(str, None), st.text()),
            (Kind.of(Backend, None), st.sampled_from(Backend)),
            (Kind.of(tuple[int, ...], None), st.lists(st.integers(-(10**9), 10**9)).map(tuple)),
            (Kind.of(tuple[Backend, ...] | None, None), st.lists(st.sampled_from(Backend), min_size=1).map(tuple)),
        ]
    ).flatmap(lambda kind: st.tuples(st.just(kind[0]), kind[1]))
)
def test_a_shown_value_reads_back_as_itself(pair: tuple[Kind, Value]) -> None:
    kind, value = pair
    assert kind.read(kind.show(value)) == value


@pytest.mark.parametrize("text", ["", "1.0", "0x1f", "1_000", " 1", "٣", "one"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        Kind.of(int, None).read(text)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "1e999", "1,5"])
def test_what_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        Kind.of(float, None).read(text)


def test_enum_names_take_any_case_and_dashes() -> None:
    kind = Kind.of(Backend, None)
    assert kind.read("shared-memory") is kind.read("Shared_Memory") is Backend.SHARED_MEMORY


def test_empty_text_is_none_an_empty_tuple_or_an_empty_text() -> None:
    assert Kind.of(int | None, None).read("") is None
    assert Kind.of(tuple[str, ...], None).read("") == ()
    assert Kind.of(str, None).read("") == ""


def test_a_path_finds_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    kind = Kind.of(Path, None)
    assert kind.read("~/model") == Path("/home/someone/model")
    for text in ("", "a\0b", "~no-such-user-here/model"):
        with pytest.raises(ValueError):
            kind.read(text)


@pytest.mark.parametrize("annotation", [dict[str, str], int | str, tuple[int, int], bytes])
def test_a_type_that_no_flag_can_have_is_our_bug(annotation: object) -> None:
    with pytest.raises(AssertionError):
        Kind.of(annotation, None)
