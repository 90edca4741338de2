"""What a master reads of the served model's folder."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from config.flags import FlagError
from master.config import MasterConfig
from master.parsing.formats import ParserChoice, choose_parsers
from master.text.chat_template import ChatTemplate
from master.text.tokenizer import Tokenizer, load_tokenizer
from serving.model_context import derived_context

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`names` are what clients may call the model, the first is shown; `parsers` read what it writes."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    template: ChatTemplate
    parsers: ParserChoice
    max_context: int  # tokens, prompt and completion together


def load_model_info(config: MasterConfig) -> ModelInfo:
    """Raises FlagError for a folder that cannot be used, and for a parser that there is not."""
    folder = config.tokenizer_path
    if folder is None:
        raise FlagError("tokenizer_path", "unset: name the folder of the served model")
    try:
        tokenizer = load_tokenizer(folder)
        template = ChatTemplate.load(folder)
        own_context = model_context(folder)
    except ValueError as error:
        raise FlagError("tokenizer_path", str(error)) from error
    try:
        parsers = choose_parsers(config.tool_call_parser, config.reasoning_parser, template.source)
    except ValueError as error:
        raise FlagError(None, str(error)) from error
    names = config.served_model_name or (folder.resolve().name,)
    return ModelInfo(names, tokenizer, template, parsers, min(config.max_context or own_context, own_context))


def model_context(folder: Path) -> int:
    """Tokens the model is made for, by its config.json, as workers read it; DEFAULT_CONTEXT where it does not say.

    Raises ValueError naming a file that cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        return DEFAULT_CONTEXT
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return derived_context(config) or DEFAULT_CONTEXT
