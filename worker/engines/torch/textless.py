"""Ids of the model's vocabulary that its tokenizer has no text for: many models have more rows than they have tokens.

Nobody could read such a token, or send it back, so none is ever sampled.
"""

import logging
from collections.abc import Collection
from pathlib import Path

import msgspec
import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from serving.foreign_code import first_line, guarded
from worker.engines.torch.loaded_model import LoadedModel

logger = logging.getLogger(__name__)


class Textless:
    def __init__(self, ids: Collection[int], device: torch.device) -> None:
        self._ids = frozenset(ids)
        self._index = torch.tensor(sorted(ids), dtype=torch.int64, device=device)

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def forbid(self, logits: torch.Tensor) -> None:
        """In place, `logits` float32 [vocabulary]."""
        logits.index_fill_(0, self._index, -torch.inf)


def find_textless(folder: Path, loaded: LoadedModel) -> Textless:
    """None of them for a folder without a tokenizer that can be read. What ends a text needs no text of its own."""
    try:
        with guarded(lambda error: ValueError(first_line(error))):
            known = _known_ids(folder)
    except ValueError as error:
        logger.warning("the tokenizer in %s can't be read, tokens without text may be sampled: %s", folder, error)
        known = None
    ids = set() if known is None else set(range(loaded.vocab_size)) - known - set(loaded.eos_ids)
    if ids:
        logger.info("%d of %d ids have no text and are never sampled", len(ids), loaded.vocab_size)
    return Textless(ids, loaded.model.device)


def _known_ids(folder: Path) -> set[int] | None:
    if (folder / "tokenizer.json").is_file():
        return set(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True).values())
    if (folder / "tokenizer.model").is_file():
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto((folder / "tokenizer.model").read_bytes())
        return {*range(processor.vocab_size()), *_added_ids(folder)}
    return None


def _added_ids(folder: Path) -> set[int]:
    """Returns ids of tokens that a sentencepiece model's file does not have."""
    added, settings = (_json_object(folder / name) for name in ("added_tokens.json", "tokenizer_config.json"))
    declared = settings.get("added_tokens_decoder")
    ids = {token_id for token_id in added.values() if isinstance(token_id, int)}
    return ids | ({int(key) for key in declared} if isinstance(declared, dict) else set())


def _json_object(path: Path) -> dict[str, object]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object]) if path.is_file() else {}
