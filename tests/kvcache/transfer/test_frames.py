import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, FrameError, FrameType, Header
from kvcache.transfer.handle import KvHandle, join_address, split_address
from kvcache.transfer.payloads import Accept, Ack, Begin, Blocks, Claim, Record, Verified
from kvcache.transfer.refusal import Refusal

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
bytes16 = st.binary(min_size=16, max_size=16)


def reread(frame: Frame) -> Frame:
    data = frame.pack()
    header = Header.parse(data[:HEADER_BYTES])
    header.check(data[HEADER_BYTES:])
    return Frame(header.type, data[HEADER_BYTES:])


@given(bytes16, u64, u64, bytes16, u32, st.frozensets(st.integers(0, 63)))
def test_a_claim_says_what_was_meant(
    token: bytes, leg: int, epoch: int, layout: bytes, num_skip: int, kinds: frozenset[int]
) -> None:
    claim = Claim(token, leg, epoch, layout, num_skip, kinds)
    assert Claim.parse(reread(claim.frame()).payload) == claim


@given(u32, st.lists(u64, min_size=1, max_size=50), st.binary(max_size=100))
def test_blocks_say_what_was_meant(first: int, checksums: list[int], told: bytes) -> None:
    blocks = Blocks(first, checksums, told)
    assert Blocks.parse(reread(blocks.frame()).payload) == blocks


@given(st.dictionaries(st.integers(0, 63), st.binary(max_size=200), max_size=5))
def test_what_is_offered_says_what_was_meant(offers: dict[int, bytes]) -> None:
    assert Accept.parse(reread(Accept(offers).frame()).payload) == Accept(offers)


@given(u32, st.binary(max_size=100), st.text(max_size=50), st.sampled_from(TransferFailure))
def test_the_other_messages_say_what_was_meant(number: int, record: bytes, text: str, why: TransferFailure) -> None:
    assert Record.parse(reread(Record(number, record).frame()).payload) == Record(number, record)
    assert Verified.parse(reread(Verified(number).frame()).payload) == Verified(number)
    assert Ack.parse(reread(Ack(number).frame()).payload) == Ack(number)
    assert Refusal.parse(reread(Refusal(why, text).frame(FrameType.ABORT)).payload).text == text.encode(
        errors="replace"
    ).decode(errors="replace")
    assert Begin.parse(reread(Begin(number % 64).frame()).payload) == Begin(number % 64)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(FrameError):
        Header.parse(data)


@given(st.integers(0, HEADER_BYTES * 8 - 1))
def test_every_flipped_bit_of_a_header_is_found(bit: int) -> None:
    data = bytearray(Frame(FrameType.RECORD, b"payload").pack()[:HEADER_BYTES])
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        Header.parse(data)


def test_a_damaged_payload_is_found() -> None:
    data = Frame(FrameType.RECORD, b"payload").pack()
    with pytest.raises(FrameError, match="damaged"):
        Header.parse(data).check(b"paiload")


@pytest.mark.parametrize("frame_type", FrameType)
def test_a_length_above_the_limit_is_refused_before_anything_is_read(frame_type: FrameType) -> None:
    checked = bytearray(Frame(frame_type).pack()[:16])
    checked[8:12] = (MAX_PAYLOAD_BYTES[frame_type] + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="at most"):
        Header.parse(bytes(checked) + zlib.crc32(checked).to_bytes(4, "big"))


@given(st.binary(max_size=64))
def test_payloads_that_say_nothing_are_refused(payload: bytes) -> None:
    for parse in (
        Claim.parse,
        Accept.parse,
        Begin.parse,
        Blocks.parse,
        Verified.parse,
        Ack.parse,
        Record.parse,
        Refusal.parse,
    ):
        try:
            parse(payload)
        except FrameError:
            continue


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 1), ("::1", 65535), ("worker-0.example", 26000)])
def test_addresses_come_back(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "[]:1", "::1:1", "[host]:1", "[::1]", "h:0", "h:65536", "h:-1", "h:1x"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        split_address(address)


def test_a_handle_checks_its_fields_and_hides_its_token() -> None:
    handle = KvHandle("[::1]:5", b"s3cret-token-123", 1, 2, bytes(16), 60.0)
    assert "s3cret" not in repr(handle)
    with pytest.raises(ValueError, match="16 bytes"):
        KvHandle("[::1]:5", b"short", 1, 2, bytes(16), 60.0)
    with pytest.raises(ValueError, match="64-bit"):
        KvHandle("[::1]:5", bytes(16), -1, 2, bytes(16), 60.0)
    with pytest.raises(ValueError, match="lease_s"):
        KvHandle("[::1]:5", bytes(16), 1, 2, bytes(16), 0.0)
