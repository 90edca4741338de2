"""What a worker computes with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Two workers that serve equal models give one answer and can use each other's KV; any other two cannot."""

    name: str  # the architecture, as the checkpoint's config calls it
    weights_digest: str  # hex, over the config and every byte of the weights
    dtype: str  # that of weights, as torch calls it
    quantization: str | None = None
    adapter: str | None = None
    is_batch_invariant: bool = False  # else companions in a step may move the last bits
    kv_dtype: str | None = None  # that of KV, where it is not `dtype`

    @property
    def identity(self) -> str:
        """All of it in one word, for people, for the KV layout's fingerprint and for the hashes of blocks."""
        parts = [self.name, self.weights_digest, self.dtype]
        if self.quantization is not None:
            parts.append(f"quantization={self.quantization}")
        if self.adapter is not None:
            parts.append(f"adapter={self.adapter}")
        if self.is_batch_invariant:
            parts.append("batch_invariant")
        if self.kv_dtype is not None:
            parts.append(f"kv={self.kv_dtype}")
        return "-".join(parts)
