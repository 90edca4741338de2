"""Texts that a model's chat is marked up with, each one token: <|im_end|>, [INST], <think>."""

import re

MARKER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


def is_marker(text: str) -> bool:
    """Whether an added token looks like one. Others, such as runs of spaces, are ordinary text."""
    return MARKER.fullmatch(text) is not None
