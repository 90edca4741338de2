"""What the master must know of the served model besides its tokenizer."""

from pathlib import Path

import msgspec

DEFAULT_CONTEXT = 4096


class _Config(msgspec.Struct):
    max_position_embeddings: int | None = None


def model_context(folder: Path) -> int:
    """Tokens the model can attend to, from config.json; DEFAULT_CONTEXT for a folder with only a tokenizer.

    Raises ValueError naming a file that cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        return DEFAULT_CONTEXT
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return config.max_position_embeddings or DEFAULT_CONTEXT
