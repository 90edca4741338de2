"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html

An event here is one line of JSON, in which line ends are always escaped.
"""

MEDIA_TYPE = b"text/event-stream; charset=utf-8"
HEADERS = [
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]
DONE = b"data: [DONE]\n\n"
FILLER = b":\n\n"  # a comment, which readers skip


def event(json_text: bytes) -> bytes:
    return b"data: " + json_text + b"\n\n"


def named_event(name: str, json_text: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode("ascii"), json_text)
