"""What plain transformers makes of a checkpoint, and prompts for it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

FIRST_ID, NUM_IDS = 3, 512  # special tokens stay out of prompts


class Reference:
    """The model as transformers runs it, with its own attention and no cache."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._greedy: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[len(token_ids), vocabulary]"""
        logits: torch.Tensor = self._model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return logits

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.log_softmax(self.logits(token_ids), dim=-1)

    @torch.inference_mode()
    def greedy(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        key = (tuple(prompt_ids), num_tokens)
        if key not in self._greedy:
            token_ids = list(prompt_ids)
            for _ in range(num_tokens):
                token_ids.append(int(self.logits(token_ids)[-1].argmax()))
            self._greedy[key] = token_ids[len(prompt_ids) :]
        return self._greedy[key]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(FIRST_ID, NUM_IDS, (length,), generator=generator).tolist())
