"""Finds out at load whether this engine computes a model as the model's own code does.

An architecture may keep state that is not KV, change its ropes with the longest sequence, mask in its own way or
ignore positions, and would then answer with wrong text, often only beside other requests. So a few sequences are
computed both ways on the real weights: whole, in chunks and token by token, beside each other, beyond the sliding
window, and near the end of the context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kvcache.pool_memory import PoolMemory
from serving.foreign_code import first_line, guarded
from worker.engines.torch.attention import ATTENTION_NAME
from worker.engines.torch.loaded_model import LoadedModel, ModelError
from worker.engines.torch.paged_forward import PagedForward, Part
from worker.engines.torch.sliding_windows import find_windows, narrowed

NUM_TOKENS = 27  # of the longest sequence
NUM_DECODED = 3  # tokens
LONGEST = 8192  # tokens, where a window can't be narrowed
BLOCK_SIZE = 4
NUM_LANES = 3
_FIRST_ID = 3  # those before are special in most vocabularies

# How far logits may lie from the model's own, relative to their spread. Another order of summation moves them by a
# hundredth of that in float32, and a mixture of experts may choose another expert for a row in half precision.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.3}
_INT8_TOLERANCE = 0.4


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Tokens, the position of the first, and what the model's own forward makes of them [tokens, vocabulary]."""

    token_ids: Sequence[int]
    first_position: int
    logits: torch.Tensor
    lane: int

    def part(self, start: int, stop: int) -> Part:
        return Part(
            token_ids=self.token_ids[start:stop],
            num_before=start,
            blocks=range(self.lane, NUM_LANES * -(-len(self.token_ids) // BLOCK_SIZE), NUM_LANES),
            wanted=range(stop - start),
            first_position=self.first_position + start,
        )


def check_model(loaded: LoadedModel, max_context: int) -> None:
    """Raises ModelError, saying what differs, unless sequences of up to `max_context` tokens can be served."""

    def refusal(error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return error
        return ModelError(f"models of type {loaded.served.name} can't be served: {first_line(error)}")

    with guarded(refusal), torch.inference_mode():
        _Check(loaded, max_context).run()


class _Check:
    def __init__(self, loaded: LoadedModel, max_context: int) -> None:
        self._loaded = loaded
        self._max_context = max_context
        self._tolerance = max(
            _TOLERANCES[loaded.dtype], _TOLERANCES[loaded.kv_dtype], _INT8_TOLERANCE if loaded.is_int8 else 0.0
        )

    def run(self) -> None:
        length = min(NUM_TOKENS, self._max_context)
        windows = find_windows(self._loaded.config, below=self._max_context)
        with narrowed(self._loaded.model, windows):
            narrow = self._compare_all(length)
        if windows and torch.equal(self._sequence(length).logits, narrow):
            # Either the window is not in use, or it was noted in another place: then only length can tell.
            length = min(max(windows.values()) + NUM_TOKENS, self._max_context)
            if length > LONGEST:
                raise self._refusal(f"its window of {length - NUM_TOKENS} tokens can't be checked{_up_to(LONGEST)}")
            self._compare_all(length)

    def _compare_all(self, length: int) -> torch.Tensor:
        """-> what the model's own forward makes of the longest sequence."""
        long = self._sequence(length)
        other = self._sequence(-(-length * 2 // 3), lane=1)
        far = self._sequence(length, first_position=self._max_context - length, lane=2)
        if long.logits.shape[1] != self._loaded.vocab_size:
            raise self._refusal(f"it has {long.logits.shape[1]} logits, its config says {self._loaded.vocab_size}")
        if not all(bool(sequence.logits.isfinite().all()) for sequence in (long, other, far)):
            raise self._refusal("its own forward yields logits that are no numbers")
        self._compare("a whole prompt", long.logits, self._forward(length).run([long.part(0, length)]))
        self._compare_chunks(long, other)
        self._compare_far(other, far)
        return long.logits

    def _compare_chunks(self, long: _Sequence, other: _Sequence) -> None:
        """`long` comes in two chunks, `other` whole beside the first; then both go on token by token, side by side."""
        first, second = len(long.token_ids) // 3, len(long.token_ids) * 2 // 3
        prompt = len(other.token_ids) // 2
        forward = self._forward(len(long.token_ids))
        rows = forward.run([long.part(0, first), other.part(0, prompt)])
        long_rows, other_rows = [rows[:first]], [rows[first:]]
        long_rows.append(forward.run([long.part(first, second)]))
        num_steps = min(NUM_DECODED, len(long.token_ids) - second, len(other.token_ids) - prompt)
        for step in range(num_steps):
            parts = [sequence.part(at + step, at + step + 1) for sequence, at in ((long, second), (other, prompt))]
            rows = forward.run(parts)
            long_rows.append(rows[:1])
            other_rows.append(rows[1:])
        chunked, beside = torch.cat(long_rows), torch.cat(other_rows)
        self._compare("a prompt in chunks", long.logits[:second], chunked[:second])
        self._compare("a prompt beside another", other.logits[:prompt], beside[:prompt])
        self._compare("decoding after chunks", long.logits[second : second + num_steps], chunked[second:])
        self._compare("decoding beside another", other.logits[prompt : prompt + num_steps], beside[prompt:])

    def _compare_far(self, near: _Sequence, far: _Sequence) -> None:
        num_near, num_far = len(near.token_ids), len(far.token_ids)
        rows = self._forward(num_far).run([near.part(0, num_near), far.part(0, num_far)])
        original = _original_context(self._loaded.config)
        hint = "" if original is None or original >= self._max_context else _up_to(original)
        self._compare(f"a prompt near the end of the context{hint}", far.logits, rows[num_near:])
        self._compare(f"a prompt beside one near the end of the context{hint}", near.logits, rows[:num_near])

    def _compare(self, what: str, expected: torch.Tensor, logits: torch.Tensor) -> None:
        """In float32 no row may differ; in less precision not most of them. Shapes [rows, vocabulary]."""
        if len(expected) == 0:
            return
        spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
        errors = (logits - expected).norm(dim=-1) / spread.clamp(min=torch.finfo(torch.float32).tiny)
        is_full = self._loaded.dtype is self._loaded.kv_dtype is torch.float32 and not self._loaded.is_int8
        error = float(errors.max() if is_full else errors.median())
        if not error <= self._tolerance:
            raise self._refusal(f"{what} differs by {error:.1e} from the model's own forward")

    def _sequence(self, length: int, first_position: int = 0, lane: int = 0) -> _Sequence:
        generator = torch.Generator().manual_seed(lane)
        vocab_size = self._loaded.vocab_size
        ids = torch.randint(min(_FIRST_ID, vocab_size - 1), vocab_size, (length,), generator=generator)
        return _Sequence(ids.tolist(), first_position, _own_logits(self._loaded.model, ids, first_position), lane)

    def _forward(self, length: int) -> PagedForward:
        """Over an empty pool, so that nothing is read that was not written, with room for `length` tokens a lane."""
        num_blocks = NUM_LANES * -(-length // BLOCK_SIZE)
        memory = PoolMemory(self._loaded.layout(BLOCK_SIZE), num_blocks, self._loaded.model.device)
        return PagedForward(self._loaded.network, memory)

    def _refusal(self, reason: str) -> ModelError:
        return ModelError(f"models of type {self._loaded.served.name} can't be served: {reason}")


def _own_logits(model: PreTrainedModel, token_ids: torch.Tensor, first_position: int) -> torch.Tensor:
    """What transformers computes alone, float32 [tokens, vocabulary]; positions are told only where they matter."""
    positions = {}
    if first_position > 0:
        stop = first_position + len(token_ids)
        positions["position_ids"] = torch.arange(first_position, stop, device=model.device).unsqueeze(0)
    model.set_attn_implementation("eager")
    try:
        output = model(input_ids=token_ids.to(model.device).unsqueeze(0), use_cache=False, **positions)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    logits: torch.Tensor = output.logits[0].float()
    return logits


def _original_context(config: PreTrainedConfig) -> int | None:
    """Up to how many tokens the ropes are those the model was first trained with, where it was stretched."""
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if original is None and rope.get("rope_type") == "dynamic":
        original = config.max_position_embeddings
    return original if isinstance(original, int) else None


def _up_to(max_context: int) -> str:
    return f" (it can be served with --max_context={max_context})"
