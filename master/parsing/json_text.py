"""Passes on one JSON value as it comes, and mends on the way what models get wrong.

Raw line ends, tabs and other control characters in strings, escapes that JSON does not have, strings in single quotes,
Python's True, False and None, NaN and Infinity (null), and commas before a closing bracket all become JSON. What is
JSON already is passed on character for character.
"""

import json
import re
from enum import Enum, auto

SPACE = re.compile(r"[ \t\r\n]+")
SCALAR = re.compile(r"[A-Za-z0-9_.+\-]+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"""[^"'\\\x00-\x1f]+""")}
# a prefix of an escape that more characters may complete, and a complete one
ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?")
ESCAPE = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})")
HEX_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
WORDS = {
    **{"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"},
    **dict.fromkeys(("NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "undefined"), "null"),
}
CLOSING = {"{": "}", "[": "]"}


class _Expected(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    COMMA = auto()


class JsonText:
    """One value: an object, an array, a string or a scalar. It `is_broken` where no JSON can come of it."""

    def __init__(self) -> None:
        self._expected = _Expected.VALUE
        self._closings: list[str] = []
        self._quote = ""  # of the string that is being read
        self._escape = ""
        self._scalar = ""
        self._held = ""  # a comma and the space after it, until what follows shows that it belongs there
        self.is_over = False
        self.is_broken = False

    @property
    def unpassed(self) -> str:
        """What was taken and not given out; of a broken value it is all that may be missing."""
        return self._held + self._scalar + self._escape

    def feed(self, text: str, start: int, out: list[str]) -> int | None:
        """Reads on at `start`, and adds to `out`. Returns where in `text` the value ended, None if it goes on."""
        position = start
        while position < len(text) and not self.is_over:
            read = self._read_string if self._quote else self._read_token
            position = read(text, position, out)
        return position if self.is_over else None

    def _read_token(self, text: str, position: int, out: list[str]) -> int:
        if scalar := SCALAR.match(text, position):
            self._scalar += scalar[0]
            return scalar.end()
        if self._scalar and not self._end_scalar(out):
            return position
        if self.is_over:
            return position
        if space := SPACE.match(text, position):
            if self._held:
                self._held += space[0]
            else:
                out.append(space[0])
            return space.end()
        if not self._take(text[position], out):
            self._break()
            return position
        return position + 1

    def _end_scalar(self, out: list[str]) -> bool:
        written = self._scalar if NUMBER.fullmatch(self._scalar) else WORDS.get(self._scalar)
        if written is None or self._expected not in (_Expected.VALUE, _Expected.FIRST_VALUE):
            self._break()
            return False
        self._scalar = ""
        self._pass_on(written, out)
        self._end_value()
        return True

    def _take(self, character: str, out: list[str]) -> bool:
        """False for a character that can't come here."""
        match self._expected, character:
            case ((_Expected.VALUE | _Expected.FIRST_VALUE), ("{" | "[")):
                self._closings.append(CLOSING[character])
                self._expected = _Expected.FIRST_KEY if character == "{" else _Expected.FIRST_VALUE
            case ((_Expected.VALUE | _Expected.FIRST_VALUE | _Expected.FIRST_KEY | _Expected.KEY), ('"' | "'")):
                self._quote = character
                character = '"'
            case _Expected.COLON, ":":
                self._expected = _Expected.VALUE
            case _Expected.COMMA, ",":
                self._held = character
                self._expected = _Expected.KEY if self._closings[-1] == "}" else _Expected.FIRST_VALUE
                return True
            case _, ("}" | "]"):
                return self._close(character, out)
            case _:
                return False
        self._pass_on(character, out)
        return True

    def _close(self, character: str, out: list[str]) -> bool:
        if self._expected in (_Expected.VALUE, _Expected.COLON) or self._closings[-1:] != [character]:
            return False
        self._held = self._held.removeprefix(",")
        self._pass_on(character, out)
        self._closings.pop()
        self._end_value()
        return True

    def _read_string(self, text: str, position: int, out: list[str]) -> int:
        if self._escape:
            return self._read_escape(text, position, out)
        if plain := PLAIN[self._quote].match(text, position):
            out.append(plain[0])
            return plain.end()
        character = text[position]
        if character == self._quote:
            self._quote = ""
            out.append('"')
            self._end_string()
        elif character == "\\":
            self._escape = character
        else:
            out.append(json.dumps(character)[1:-1])
        return position + 1

    def _read_escape(self, text: str, position: int, out: list[str]) -> int:
        escape = self._escape + text[position]
        if ESCAPE_BEGUN.fullmatch(escape):
            self._escape = escape
            return position + 1
        begun, self._escape = self._escape, ""
        if ESCAPE.fullmatch(escape):
            out.append(escape)
        elif hexadecimal := HEX_ESCAPE.fullmatch(escape):
            out.append(f"\\u00{hexadecimal[1]}")
        elif escape == "\\'":
            out.append("'")
        else:  # a backslash that is meant as such
            out.append("\\" + begun)
            return position
        return position + 1

    def _end_string(self) -> None:
        if self._expected in (_Expected.FIRST_KEY, _Expected.KEY):
            self._expected = _Expected.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        self._expected = _Expected.COMMA
        self.is_over = not self._closings

    def _pass_on(self, written: str, out: list[str]) -> None:
        if self._held:
            out.append(self._held)
            self._held = ""
        out.append(written)

    def _break(self) -> None:
        self.is_over = self.is_broken = True


def whole_json(text: str) -> str | None:
    """The text as JSON, mended where it is nearly that; None if it is not one value."""
    out: list[str] = []
    value = JsonText()
    end = value.feed(text.strip() + "\n", 0, out)
    return None if end is None or value.is_broken or text.strip()[end:] else "".join(out).strip()
