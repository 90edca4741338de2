"""Makes room for 8-bit activations: channels much larger than others are made smaller, and their weights larger.

A row's scale follows its largest channel, so that one outlier costs all others their precision. Where something stands
before a product that can be divided channel by channel (a norm's weight, the rows of `up` before `down`), it is, and
the product's weights of that channel are multiplied (SmoothQuant, Xiao et al. 2023). Factors are powers of two, so the
model's own output does not change by a bit, and machines that round in their own way find the same ones.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from worker.engines.torch.attention import ATTENTION_NAME

NUM_TOKENS = 256
_SEED = 0
_TINY = 1e-8


@torch.inference_mode()
def smooth(model: PreTrainedModel) -> None:
    """Changes the weights of a model of the Llama family in place."""
    decoder: Any = model.model
    feeds: list[tuple[Any, tuple[Any, ...]]] = []  # what is divided, and the products of its output
    for layer in decoder.layers:
        attention, mlp = layer.self_attn, layer.mlp
        feeds.append((layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)))
        feeds.append((layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)))
        feeds.append((mlp.up_proj, (mlp.down_proj,)))
    shares = _mean_shares(model, [products[0] for _, products in feeds])
    for (before, products), share in zip(feeds, shares, strict=True):
        weights = torch.stack([product.weight.abs().amax(dim=0) for product in products]).amax(dim=0).float()
        factor = torch.exp2(torch.round(torch.log2((share.clamp(_TINY) / weights.clamp(_TINY)).sqrt())))
        for divided in (before.weight, getattr(before, "bias", None)):
            if divided is not None:
                divided.div_(factor if divided.dim() == 1 else factor.unsqueeze(1))
        for product in products:
            product.weight.mul_(factor)


def _mean_shares(model: PreTrainedModel, modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    """How large each input channel [width] is beside its row's largest, on average over the same random tokens.

    A few rows are larger than all others by orders of magnitude; each has a scale of its own, so it counts as one row.
    """
    found: dict[torch.nn.Module, torch.Tensor] = {}

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        sizes = inputs[0].float().abs()
        found[module] = (sizes / sizes.amax(dim=-1, keepdim=True).clamp(_TINY)).mean(dim=(0, 1))

    hooks = [module.register_forward_pre_hook(note) for module in modules]
    ids = torch.randint(model.config.vocab_size, (1, NUM_TOKENS), generator=torch.Generator().manual_seed(_SEED))
    model.set_attn_implementation("eager")
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
        for hook in hooks:
            hook.remove()
    return [found[module] for module in modules]
