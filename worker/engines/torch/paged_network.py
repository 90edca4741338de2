"""The model as the engine runs it: tokens of several sequences in one row, KV in the paged pool."""

from typing import Protocol

import torch
from transformers import PreTrainedModel

from worker.engines.torch.attention import PagedStep


class PagedNetwork(Protocol):
    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor, paged: PagedStep
    ) -> torch.Tensor:
        """`token_ids`, `positions` int64 [rows] -> float32 [len(kept), vocabulary], of the rows `kept`."""


class TransformersNetwork:
    """Any architecture, by its own code in transformers, which calls `attention.paged_attention`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor, paged: PagedStep
    ) -> torch.Tensor:
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=kept,
            paged=paged,
        )
        logits: torch.Tensor = output.logits[0].float()
        return logits
