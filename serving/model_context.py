"""How many tokens a model is made for, from its config: the rules are vLLM's, so that both serve the same lengths."""

from collections.abc import Iterator, Mapping

Fields = Mapping[str, object]

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",  # GPT-2
    "max_seq_len",  # MPT
    "seq_length",  # ChatGLM
    "model_max_length",  # Cohere
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_INCLUDED = ("su", "longrope", "llama3")  # kinds of rope whose factor is in the length already


def derived_context(config: Fields) -> int | None:
    """`config` is a model folder's config.json, or the text model's part of it; None when it names no length."""
    if isinstance(text := config.get("text_config"), dict):
        return derived_context(text) or _own_context(config)
    return _own_context(config)


def _own_context(config: Fields) -> int | None:
    lengths = [value for name in _LENGTHS if (value := _positive(config.get(name))) is not None]
    if not lengths:
        return None
    length, factor = min(lengths), 1.0
    if "gemma3" in str(config.get("model_type")):
        return length  # its factor is in the length, too
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in _INCLUDED:
            continue
        scale = rope.get("factor")
        factor = float(scale) if isinstance(scale, int | float) else 1.0
        if kind == "yarn":
            length = _positive(rope.get("original_max_position_embeddings")) or length
    return int(length * factor)


def _ropes(config: Fields) -> Iterator[Fields]:
    """One for all layers, or one for each type of layer."""
    for name in ("rope_scaling", "rope_parameters"):  # as they were called before transformers 5, and since
        rope = config.get(name)
        if isinstance(rope, dict) and rope:
            nested = [value for value in rope.values() if isinstance(value, dict)]
            yield from nested or [rope]


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
