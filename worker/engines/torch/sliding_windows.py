"""The sliding windows of a model, and how to make them narrow for a while.

Whether a window is computed rightly shows only beyond it, and thousands of tokens take long to compute; a window of a
few tokens shows the same.
"""

import contextlib
from collections.abc import Iterator, Mapping

from transformers import PreTrainedConfig, PreTrainedModel

NARROW = 8  # tokens
_ENDINGS = ("window", "window_size", "attention_chunk_size")


def find_windows(config: PreTrainedConfig, below: int) -> dict[str, int]:
    """Widths in tokens by their names in the config, without those that nothing shorter than `below` reaches."""
    return {
        name: width
        for name, width in config.to_dict().items()
        if name.endswith(_ENDINGS) and isinstance(width, int) and NARROW < width < below
    }


@contextlib.contextmanager
def narrowed(model: PreTrainedModel, windows: Mapping[str, int]) -> Iterator[None]:
    """Where a module noted a width of its config under the same name, it is narrowed there, too."""
    holders: list[tuple[object, str, int]] = [(model.config, name, width) for name, width in windows.items()]
    for module in model.modules():
        holders += [(module, name, width) for name, width in windows.items() if getattr(module, name, None) == width]
    try:
        for holder, name, _ in holders:
            setattr(holder, name, NARROW)
        yield
    finally:
        for holder, name, width in holders:
            setattr(holder, name, width)
