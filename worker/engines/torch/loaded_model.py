"""A model as it was loaded, and what the rest of the engine must know of it."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kvcache.layout import KvLayout
from protos.served_model import ServedModel
from worker.engines.torch.paged_network import PagedNetwork

INT8 = "int8"  # as a served model's quantization


class ModelError(ValueError):
    """The folder holds no model that can be served; the message says in one line what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: PreTrainedModel
    network: PagedNetwork  # what computes it
    config: PreTrainedConfig  # of the text model, where the checkpoint has others
    served: ServedModel
    vocab_size: int
    max_context: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    eos_ids: tuple[int, ...]  # that its generation config names

    @property
    def is_int8(self) -> bool:
        """Whether this engine rounds its weights and activations to 8 bits."""
        return self.served.quantization == INT8

    def layout(self, block_size: int) -> KvLayout:
        return KvLayout(
            self.num_layers, block_size, self.num_kv_heads, self.head_dim, self.kv_dtype, self.served.identity
        )
