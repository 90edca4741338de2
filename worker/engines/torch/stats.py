"""How fast the engine is: moving averages for the router, totals for the metrics. Written by the engine thread only."""

from collections.abc import Sequence

from protos.session_messages import PrefillSpeed
from worker.engines.torch.prefill_fit import PrefillFit
from worker.engines.torch.scheduler import Chunk

_WEIGHT = 0.1  # of the newest step in a moving average


class EngineStats:
    def __init__(self) -> None:
        self.num_steps = 0
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.decode_step_s = 0.0
        self._prefill = PrefillFit()

    @property
    def prefill_speed(self) -> PrefillSpeed | None:
        """None before the first prompt."""
        return self._prefill.speed()

    def count_step(self, chunks: Sequence[Chunk], duration_s: float) -> None:
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        num_decode = sum(chunk.num_tokens == 1 for chunk in chunks)
        self.num_steps += 1
        self.num_decode_tokens += num_decode
        self.num_prefill_tokens += num_tokens - num_decode
        if num_tokens == num_decode:
            self.decode_step_s = _average(self.decode_step_s, duration_s)
        else:
            self._prefill.add(num_tokens, duration_s)


def _average(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
