from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings_file import Setting, read_settings


def test_entries_are_found_by_flag_name_and_know_their_place(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# first\nport: 1\nsome-list:\n  - a\n  - ~\n")
    assert read_settings(file) == {
        "port": Setting("1", f"{file} line 2, key port"),
        "some_list": Setting(("a", ""), f"{file} line 3, key some-list"),
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_has_no_entries(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert read_settings(file) == {}


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"\xff\xfe\xfd", b"text", b"? [a]\n: b", b"a: [[b]]", b"a: 1\n---\nb: 2", b"a: *b", b"[" * 5000],
)
def test_anything_but_a_flat_mapping_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError) as raised:
        read_settings(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        read_settings(tmp_path)


@given(st.binary(max_size=40))
def test_any_content_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    try:
        read_settings(file)
    except ValueError as error:
        assert str(file) in str(error)
