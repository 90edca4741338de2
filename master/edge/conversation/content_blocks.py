"""Makes an answer a row of blocks, each whole before the next, as APIs have it whose answers are lists of parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from master.parsing.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart


class BlockKind(Enum):
    TEXT = auto()
    REASONING = auto()
    CALL = auto()


class Block:
    """`call` is set for a call, whose text is its arguments as JSON. `logprobs` are those of a text's tokens."""

    def __init__(self, index: int, kind: BlockKind, call: ToolCallStart | None = None) -> None:
        self.index = index
        self.kind = kind
        self.call = call
        self.logprobs: list[object] = []
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str) -> None:
        self._texts.append(text)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str
    logprobs: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Change = Opened | Grown | Closed


class ContentBlocks:
    """A block ends where something of another kind, or another call, begins."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._is_open = False
        self._logprobs: list[object] = []  # of tokens whose text is yet to come

    def add(self, events: Sequence[Event], logprobs: Sequence[object] = ()) -> list[Change]:
        """`logprobs` are of the tokens that made these events, as they are to be shown."""
        changes: list[Change] = []
        self._logprobs += logprobs
        for event in events:
            match event:
                case ContentDelta(text):
                    self._grow(BlockKind.TEXT, text, changes)
                case ReasoningDelta(text):
                    self._grow(BlockKind.REASONING, text, changes)
                case ToolCallStart():
                    self._open(BlockKind.CALL, changes, event)
                case ToolCallArguments(_, text):
                    self._grow(BlockKind.CALL, text, changes)
        return changes

    def close(self) -> list[Change]:
        """Ends the last block, once all is there. An answer of nothing is an empty text."""
        changes: list[Change] = []
        if not self.blocks:
            self._open(BlockKind.TEXT, changes)
        self._close(changes)
        return changes

    def _grow(self, kind: BlockKind, text: str, changes: list[Change]) -> None:
        if not (self._is_open and self.blocks[-1].kind is kind):
            assert kind is not BlockKind.CALL, "arguments come right after their call's start"
            self._open(kind, changes)
        block = self.blocks[-1]
        block.add(text)
        logprobs, self._logprobs = self._logprobs, []
        if kind is BlockKind.TEXT:
            block.logprobs += logprobs
        changes.append(Grown(block, text, tuple(logprobs) if kind is BlockKind.TEXT else ()))

    def _open(self, kind: BlockKind, changes: list[Change], call: ToolCallStart | None = None) -> None:
        self._close(changes)
        block = Block(len(self.blocks), kind, call)
        self.blocks.append(block)
        self._is_open = True
        changes.append(Opened(block))

    def _close(self, changes: list[Change]) -> None:
        if self._is_open:
            self._is_open = False
            changes.append(Closed(self.blocks[-1]))
