"""What a family of models has agreed on for calls: how they are read, and how they are written."""

from collections.abc import Callable
from dataclasses import dataclass

from master.parsing.call_ids import CallSeries
from master.parsing.events import OutputParser


@dataclass(frozen=True, slots=True)
class CallLayout:
    """The pieces of an output that is calls only; each piece is either text or a tag, which may be one token.

    begin, call, (between, call)*, end; and a call is before_name, name, before_arguments, arguments, after_arguments.
    """

    begin: tuple[str, ...]
    before_name: tuple[str, ...]
    is_name_quoted: bool
    before_arguments: tuple[str, ...]
    after_arguments: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`tags` may be special tokens, so detokenising must not skip those."""

    name: str
    tags: tuple[str, ...]
    new_parser: Callable[[CallSeries], OutputParser]
    new_id: Callable[[], str]
    layout: CallLayout
