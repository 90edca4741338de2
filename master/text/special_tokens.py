"""Which tokens begin and end a text, as the files beside the tokenizer say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from master.text.model_folder import ModelFolder, ModelFolderError

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class SpecialTokens:
    """What the files of a model's folder declare; ids of token texts are looked up by the tokenizer.

    `texts` maps names such as `bos_token` to the token's text. The ids are those of generation_config.json,
    else of config.json (whose `text_config` counts too). `add_bos` and `add_eos`, None where
    tokenizer_config.json does not say, are for tokenizers that have no post-processor of their own.
    """

    texts: Mapping[str, str]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool | None
    add_eos: bool | None

    @classmethod
    def load(cls, folder: ModelFolder) -> "SpecialTokens":
        """Raises ModelFolderError where a file is malformed."""
        tokenizer_config = folder.json_object("tokenizer_config.json")
        declared = folder.json_object("special_tokens_map.json") | {
            name: value for name, value in tokenizer_config.items() if value is not None
        }
        texts = {name: text for name in _NAMES if (text := _token_text(declared.get(name))) is not None}
        config = folder.json_object("config.json")
        text_config = config.get("text_config")
        sources = [folder.json_object("generation_config.json"), config]
        if isinstance(text_config, dict):
            sources.append(text_config)
        bos_ids = _first_ids(sources, "bos_token_id")
        return cls(
            texts,
            bos_ids[0] if bos_ids else None,
            _first_ids(sources, "eos_token_id"),
            _flag(tokenizer_config, "add_bos_token"),
            _flag(tokenizer_config, "add_eos_token"),
        )

    def resolve_bos(self, token_to_id: Callable[[str], int | None]) -> int | None:
        """The id of the tokenizer's own bos_token, else the one the model's config gives."""
        text = self.texts.get("bos_token")
        own = token_to_id(text) if text is not None else None
        return self.bos_id if own is None else own

    def resolve_eos(self, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
        """Every id that ends a text, the tokenizer's own eos_token first."""
        text = self.texts.get("eos_token")
        own = token_to_id(text) if text is not None else None
        return tuple(dict.fromkeys(([] if own is None else [own]) + list(self.eos_ids)))


def _token_text(value: object) -> str | None:
    """A token is written as its text, or as an object with its text under `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _flag(config: Mapping[str, object], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _first_ids(sources: list[dict[str, object]], name: str) -> tuple[int, ...]:
    for source in sources:
        value = source.get(name)
        if value is not None:
            return _ids(value, name)
    return ()


def _ids(value: object, name: str) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    ids = [item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
    if len(ids) != len(items):
        raise ModelFolderError(f"{name} is {value!r}; expected a token id or a list of them")
    return tuple(ids)
