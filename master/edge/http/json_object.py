"""JSON put together from parts that are JSON already."""

import msgspec

NULL = b"null"
# Line ends beyond ASCII, which JSON may have raw in texts: whoever reads events by lines would split there.
LINE_ENDS = {end: f"\\u{ord(end.decode()):04x}".encode() for end in (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")}
_encode = msgspec.json.Encoder().encode


def encode(value: object) -> bytes:
    """JSON in one line, for whatever reads it."""
    encoded = _encode(value)
    if not encoded.isascii():
        for end, escaped in LINE_ENDS.items():
            encoded = encoded.replace(end, escaped)
    return encoded


def members(**values: bytes) -> bytes:
    """`"name":value,…` without braces."""
    return b",".join(b'"%s":%s' % (name.encode(), value) for name, value in values.items())
