import logging
import os
from pathlib import Path

import pytest

from serving.keys import Keys


def test_only_a_whole_key_is_accepted() -> None:
    keys = Keys(["alpha", "beta"])
    assert keys.accepts("alpha") and keys.accepts(b"beta")
    for wrong in ("", "alph", "alphabeta", "Alpha", "alpha,beta", " alpha", "\udcff", b"\xff"):
        assert not keys.accepts(wrong), wrong
    assert "alpha" not in repr(keys)


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\none\n\n  two  \r\n")
    keys = Keys(["three"], file)
    assert len(keys) == 3
    assert all(keys.accepts(key) for key in ("one", "two", "three"))
    assert not keys.accepts("# of the team")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    keys = Keys((), file, check_interval_s=0.0)
    assert keys.accepts("old")
    file.write_text("old\nnew\n")
    assert keys.accepts("new") and keys.accepts("old")
    replacement = tmp_path / "replacement"
    replacement.write_text("newer\n")
    os.replace(replacement, file)
    assert keys.accepts("newer")
    assert not keys.accepts("old") and not keys.accepts("new")


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"two words\n", b"\xff\xfe\n"])
def test_a_file_that_has_become_useless_changes_nothing(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    keys = Keys(["listed"], file, check_interval_s=0.0)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert keys.accepts("old") and keys.accepts("listed")
            assert not keys.accepts("")
    assert len(caplog.records) == 1
    file.write_text("another\n")
    assert keys.accepts("another") and not keys.accepts("old")


def test_keys_that_no_header_can_carry_are_refused_without_being_shown(tmp_path: Path) -> None:
    for wrong in ("", "se cret", "secret\n", "sécret"):
        with pytest.raises(ValueError, match="ASCII") as caught:
            Keys([wrong])
        assert "cret" not in str(caught.value)
    file = tmp_path / "keys"
    file.write_text("\n")
    with pytest.raises(ValueError, match="no key"):
        Keys((), file)
    with pytest.raises(OSError, match="absent"):
        Keys((), tmp_path / "absent")
