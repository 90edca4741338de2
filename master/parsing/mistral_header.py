"""Reads what stands between [TOOL_CALLS] and the arguments: name[ARGS], name[CALL_ID]id[ARGS], or just the name."""

from enum import Enum, auto

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
NOT_IN_NAME = frozenset(' \t\r\n[]{}"<>')


class HeaderEnd(Enum):
    OBJECT = auto()  # the arguments begin
    ARRAY = auto()  # the older form: a list of calls begins
    BROKEN = auto()


class MistralHeader:
    def __init__(self) -> None:
        self._name: list[str] = []
        self._id: list[str] = []
        self._tag = ""
        self._is_in_id = False
        self._is_complete = False

    @property
    def name(self) -> str:
        return "".join(self._name)

    @property
    def call_id(self) -> str | None:
        return "".join(self._id) or None

    def add(self, character: str) -> HeaderEnd | None:
        """None as long as more is to come; the character that ends a header is not part of it."""
        if self._tag:
            return self._add_to_tag(self._tag + character)
        if character == "{" and self._name:
            return HeaderEnd.OBJECT
        if character.isspace() and (self._is_complete or not self._name):
            return None
        if character == "[" and not self._name:
            return HeaderEnd.ARRAY
        if character == "[" and not self._is_complete:
            self._tag = character
            return None
        if self._is_complete or character in NOT_IN_NAME:
            return HeaderEnd.BROKEN
        (self._id if self._is_in_id else self._name).append(character)
        return None

    def _add_to_tag(self, tag: str) -> HeaderEnd | None:
        self._tag = "" if tag in (ARGS, CALL_ID) else tag
        if tag == ARGS:
            self._is_complete = True
        elif tag == CALL_ID:
            if self._is_in_id:
                return HeaderEnd.BROKEN
            self._is_in_id = True
        elif not (ARGS.startswith(tag) or CALL_ID.startswith(tag)):
            return HeaderEnd.BROKEN
        return None
