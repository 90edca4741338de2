"""JSON put together from parts that are JSON already."""

import msgspec

NULL = b"null"
encode = msgspec.json.Encoder().encode


def members(**values: bytes) -> bytes:
    """`"name":value,…` without braces."""
    return b",".join(b'"%s":%s' % (name.encode(), value) for name, value in values.items())
