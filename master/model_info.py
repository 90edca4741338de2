"""What the master must know of the served model besides its tokenizer."""

from pathlib import Path

import msgspec

from serving.model_context import derived_context

DEFAULT_CONTEXT = 4096


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
