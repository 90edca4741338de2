import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.transfer.errors import TransferFailure
from kvcache.transfer.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, FrameError, FrameType, Header
from kvcache.transfer.handle import KvHandle, join_address, split_address
from kvcache.transfer.payloads import Accept, Ack, Begin, Offer, PullHello, PullProgress, Record, Refusal
from kvcache.transfer.transports.host_identity import HostIdentity
from kvcache.transfer.transports.transport import TransportKind

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
bytes16 = st.binary(min_size=16, max_size=16)


def reread(frame: Frame) -> Frame:
    data = frame.pack()
    header = Header.parse(data[:HEADER_BYTES])
    header.check(data[HEADER_BYTES:])
    return Frame(header.type, data[HEADER_BYTES:])


@given(bytes16, u64, u64, bytes16, u32, st.booleans(), u64, st.frozensets(st.sampled_from(TransportKind)))
def test_hello_says_what_was_meant(
    token: bytes,
    leg: int,
    epoch: int,
    layout: bytes,
    num_skip: int,
    has_host: bool,
    namespace: int,
    transports: frozenset[TransportKind],
) -> None:
    host = HostIdentity(b"boot" * 4, namespace) if has_host else None
    hello = PullHello(token, leg, epoch, layout, num_skip, host, transports)
    assert PullHello.parse(reread(hello.frame()).payload) == hello


@given(u32, st.lists(st.tuples(u64, u64), min_size=1, max_size=50), st.booleans())
def test_offers_say_what_was_meant(first: int, rows: list[tuple[int, int]], is_one_sided: bool) -> None:
    offer = Offer(first, [row[0] for row in rows], [row[1] for row in rows] if is_one_sided else None)
    assert Offer.parse(reread(offer.frame())) == offer


@given(u32, st.binary(max_size=100), st.text(max_size=50), st.sampled_from(TransferFailure))
def test_the_other_messages_say_what_was_meant(number: int, record: bytes, text: str, why: TransferFailure) -> None:
    assert Record.parse(reread(Record(number, record).frame()).payload) == Record(number, record)
    assert PullProgress.parse(reread(PullProgress(number).frame()).payload) == PullProgress(number)
    assert Ack.parse(reread(Ack(number).frame()).payload) == Ack(number)
    assert Refusal.parse(reread(Refusal(why, text).frame(FrameType.ABORT)).payload).text == text.encode(
        errors="replace"
    ).decode(errors="replace")
    accept = Accept(number % 2**31 or None, number, bytes(16))
    assert Accept.parse(reread(accept.frame()).payload) == accept


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
        PullHello.parse,
        Accept.parse,
        Begin.parse,
        PullProgress.parse,
        Ack.parse,
        Record.parse,
        Refusal.parse,
    ):
        try:
            parse(payload)
        except FrameError:
            continue
    for frame_type in (FrameType.BLOCKS, FrameType.READY):
        try:
            Offer.parse(Frame(frame_type, payload))
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
