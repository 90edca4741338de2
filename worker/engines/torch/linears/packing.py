"""Chooses the library whose matrix product is the fastest on this CPU, once, when a model is loaded."""

import logging
import time

import torch

from worker.engines.torch.kernels.rows import Rows
from worker.engines.torch.linears.half import HalfLinear
from worker.engines.torch.linears.linear import Linear, Pack, PlainLinear
from worker.engines.torch.linears.onednn import OneDnnLinear

logger = logging.getLogger(__name__)

PROBED_ROWS = (2, 16, 256)  # a decode, a batch of them, a chunk of a prompt
_LARGEST = 2048  # rows and columns of a probed weight
_NUM_TRIES = 3
CLEARLY_SLOWER = 1.25  # than torch's own product


def fastest_packing(dtype: torch.dtype, like: torch.Tensor) -> Pack:
    """For weights of `dtype`, such as `like` [out, in]."""
    candidates: list[Pack] = []
    if OneDnnLinear.takes(dtype):
        candidates.append(OneDnnLinear)
    if dtype is torch.float16 and HalfLinear.is_available():
        candidates.append(HalfLinear)
    if not candidates:
        return PlainLinear
    weight = like[:_LARGEST, :_LARGEST].contiguous()
    times = {pack: _times(pack(weight, None), weight.shape[1]) for pack in (*candidates, PlainLinear)}
    shares = {pack: _mean_share(times[pack], times[PlainLinear]) for pack in times}
    # torch's own is not as exact in batches, so it has to be clearly faster.
    best = min(candidates, key=lambda pack: shares[pack])
    if shares[best] > CLEARLY_SLOWER:
        best = PlainLinear
    shown = ", ".join(f"{_name(pack)} {share:.2f}" for pack, share in shares.items())
    logger.info("matrix products by %s; times relative to torch's own: %s", _name(best), shown)
    return best


def _times(linear: Linear, width: int) -> list[float]:
    """Seconds for each of PROBED_ROWS, the least of a few tries."""
    found = []
    for num_rows in PROBED_ROWS:
        rows = Rows(torch.ones(num_rows, width, dtype=linear.form(num_rows).dtype))
        tries = []
        for _ in range(_NUM_TRIES):
            started_s = time.perf_counter()
            linear(rows)
            tries.append(time.perf_counter() - started_s)
        found.append(min(tries))
    return found


def _mean_share(times: list[float], plain: list[float]) -> float:
    return sum(one / other for one, other in zip(times, plain, strict=True)) / len(times)


def _name(pack: Pack) -> str:
    return getattr(pack, "__name__", repr(pack))
