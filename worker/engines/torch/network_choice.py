"""Chooses what computes a model: compiled kernels where they can, else transformers; never without a check."""

import logging
from dataclasses import replace

import torch

from worker.engines.torch.kernels.library import load_kernels
from worker.engines.torch.llama_network import MODEL_TYPES, LlamaNetwork
from worker.engines.torch.loaded_model import LoadedModel, ModelError
from worker.engines.torch.row_blocks import is_invariant_at_any_size
from worker.engines.torch.self_check import check_model

logger = logging.getLogger(__name__)


def with_checked_network(loaded: LoadedModel, max_context: int, num_threads: int) -> LoadedModel:
    """`loaded` with the fastest network that computes it rightly up to `max_context` tokens. Raises ModelError."""
    if LlamaNetwork.takes(loaded.model) and (kernels := load_kernels(num_threads)) is not None:
        dtype = torch.int8 if loaded.is_int8 else loaded.dtype
        compiled = replace(loaded, network=LlamaNetwork(loaded.model, kernels, dtype))
        try:
            _check_compiled(compiled, max_context)
        except ModelError as error:
            if loaded.is_int8:
                raise
            logger.warning("computed by transformers, slower, as compiled kernels do not fit: %s", error)
        else:
            _free_linears(loaded.model)
            torch.set_num_threads(1)  # the others would only spin beside the network's own threads
            return compiled
    if loaded.is_int8:
        raise ModelError(
            f"models of type {loaded.served.name} can't be rounded to int8 here: that takes a C compiler, and one of "
            f"{', '.join(MODEL_TYPES)} in full precision"
        )
    check_model(loaded, max_context)
    return loaded


def _check_compiled(loaded: LoadedModel, max_context: int) -> None:
    """Raises ModelError unless it computes rightly, and the same bits in steps of any shape."""
    check_model(loaded, max_context)
    if not is_invariant_at_any_size(loaded):
        raise ModelError("the bits of a row depend on the others in its step")


def _free_linears(model: torch.nn.Module) -> None:
    """The network has packed copies of these weights. What is left no longer holds on to the mapped checkpoint."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
