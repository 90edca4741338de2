from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdserve.gguf_reader import GgufError, GgufFile
from tests.pdserve.tiny_gguf import Q4_0, Q4_1, Q8_0, Entry, Stored, stored_f32, write_gguf


def half(number: float) -> bytes:
    return np.float16(number).tobytes()


def test_metadata_of_every_kind_is_read(tmp_path: Path) -> None:
    metadata: dict[str, Entry] = {
        "a.int": 7,
        "a.float": 0.5,
        "a.bool": True,
        "a.text": "é",
        "a.ints": [1, -2],
        "a.texts": ["x", ""],
    }
    write_gguf(tmp_path / "m.gguf", metadata, {})
    with GgufFile(tmp_path / "m.gguf") as file:
        assert file.metadata == metadata
        assert file.tensors == {}


def test_plain_tensors_are_read_with_their_shapes(tmp_path: Path) -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    halves = np.array([1.5, -2.0, 0.1], np.float16)
    write_gguf(tmp_path / "m.gguf", {}, {"a": stored_f32(values), "b": Stored(1, (3,), halves.tobytes())})
    with GgufFile(tmp_path / "m.gguf") as file:
        np.testing.assert_array_equal(file.tensor("a"), values)
        np.testing.assert_array_equal(file.tensor("b"), halves.astype(np.float32))


def test_q8_0_is_scale_times_level(tmp_path: Path) -> None:
    levels = np.arange(-32, 32, dtype=np.int8)
    data = half(0.5) + levels[:32].tobytes() + half(-2) + levels[32:].tobytes()
    write_gguf(tmp_path / "m.gguf", {}, {"a": Stored(Q8_0, (2, 32), data)})
    with GgufFile(tmp_path / "m.gguf") as file:
        expected = np.stack([levels[:32] * np.float32(0.5), levels[32:] * np.float32(-2)])
        np.testing.assert_array_equal(file.tensor("a"), expected)


def test_q4_0_is_scale_times_level_around_eight_low_nibbles_first(tmp_path: Path) -> None:
    low, high = np.arange(16), np.arange(16)[::-1]
    data = half(0.25) + bytes((low | high << 4).astype(np.uint8))
    write_gguf(tmp_path / "m.gguf", {}, {"a": Stored(Q4_0, (1, 32), data)})
    with GgufFile(tmp_path / "m.gguf") as file:
        expected = (np.concatenate([low, high]).astype(np.float32) - 8) * np.float32(0.25)
        np.testing.assert_array_equal(file.tensor("a"), expected[None])


def test_q4_1_is_scale_times_level_plus_minimum_low_nibbles_first(tmp_path: Path) -> None:
    low, high = np.arange(16), np.arange(16)[::-1]
    data = half(0.25) + half(-1) + bytes((low | high << 4).astype(np.uint8))
    write_gguf(tmp_path / "m.gguf", {}, {"a": Stored(Q4_1, (1, 32), data)})
    with GgufFile(tmp_path / "m.gguf") as file:
        expected = np.concatenate([low, high]).astype(np.float32) * np.float32(0.25) - 1
        np.testing.assert_array_equal(file.tensor("a"), expected[None])


@pytest.mark.parametrize("content", [b"", b"GG", b"GGML" + bytes(40), b"GGUF\x01" + bytes(40), b"GGUF\x03\0\0\0\xff"])
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(GgufError, match=r"m\.gguf"):
        GgufFile(tmp_path / "m.gguf")


def test_a_tensor_of_an_unknown_type_or_cut_off_is_refused(tmp_path: Path) -> None:
    tensors = {"odd": Stored(99, (4,), bytes(16)), "ragged": Stored(Q8_0, (31,), bytes(34))}
    write_gguf(tmp_path / "m.gguf", {}, {**tensors, "cut": Stored(0, (100,), bytes(16))})
    with GgufFile(tmp_path / "m.gguf") as file:
        for name, problem in [("odd", "type 99"), ("ragged", "whole blocks"), ("cut", "400 bytes expected")]:
            with pytest.raises(GgufError, match=problem):
                file.tensor(name)
        with pytest.raises(KeyError):
            file.tensor("missing")


@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    write_gguf(path, {"a": ["x", "y"], "b": 1.5}, {"t": stored_f32(np.ones((2, 2), np.float32))})
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        with GgufFile(path) as file:
            for name in file.tensors:
                file.tensor(name)
    except GgufError as error:
        assert str(error)
