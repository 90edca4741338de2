"""Finds the end of a JSON value in text that comes in pieces.

Follows strings and nesting only, so a value that is nearly JSON (a trailing comma, Python's True) is passed on as
the model wrote it instead of taking the call with it.
"""

import re

OUTSIDE_STRING = re.compile(r'[{}\[\]"<]')
IN_STRING = re.compile(r'["\\]')
AFTER_SCALAR = re.compile(r"[\s,}\]<]")


class JsonSpan:
    """One object, array or string whose first character comes first, or else a scalar."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_scalar: bool | None = None

    def end_in(self, text: str, start: int) -> int | None:
        """Where in `text` the value ends that began or goes on at `start`; None if it goes on after `text`.

        A `<` outside strings can't be JSON, most likely it begins a closing tag: the value ends before it.
        """
        if start == len(text):
            return None
        if self._is_scalar is None:
            self._is_scalar = text[start] not in '{["'
        if self._is_scalar:
            delimiter = AFTER_SCALAR.search(text, start)
            return delimiter.start() if delimiter else None
        return self._structure_end(text, start)

    def _structure_end(self, text: str, position: int) -> int | None:
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (IN_STRING if self._is_in_string else OUTSIDE_STRING).search(text, position)
            if found is None:
                return None
            position = found.end()
            match found[0]:
                case "\\":
                    self._is_escaped = True
                case '"':
                    self._is_in_string = not self._is_in_string
                case "<":
                    return found.start()
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
            if self._depth == 0 and not self._is_in_string:
                return position
        return None
