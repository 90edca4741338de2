"""Which tokens a sequence has seen, for penalties: counted as it grows, so that no token costs more than another."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 64


class SeenTokens:
    """Output ids only ever grow between calls."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._prompt_ids: Sequence[int] = prompt_ids
        self._num_output = 0  # of them counted so far
        self._places: dict[int, int] | None = None  # of ids in `_ids`; counted only for who has penalties
        self._ids: NDArray[np.int64] = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._times: NDArray[np.float32] = np.empty(_FIRST_ROOM, dtype=np.float32)  # in the output

    def ids(self, output_ids: Sequence[int]) -> NDArray[np.int64]:
        """-> the different ids of prompt and output; the caller's until the next call."""
        num = self._count(output_ids)
        return self._ids[:num]

    def output_counts(self, output_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """-> the different ids of the output, and how often each is in it."""
        num = self._count(output_ids)
        is_output = self._times[:num] > 0
        return self._ids[:num][is_output], self._times[:num][is_output]

    def _count(self, output_ids: Sequence[int]) -> int:
        """Counts what is new -> how many different ids there are."""
        if self._places is None:
            self._places = {}
            for token_id in self._prompt_ids:
                self._place(self._places, token_id)
        for token_id in output_ids[self._num_output :]:
            place = self._place(self._places, token_id)
            self._times[place] += 1
        self._num_output = len(output_ids)
        return len(self._places)

    def _place(self, places: dict[int, int], token_id: int) -> int:
        place = places.get(token_id)
        if place is not None:
            return place
        place = places[token_id] = len(places)
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._times = np.concatenate((self._times, np.empty_like(self._times)))
        self._ids[place], self._times[place] = token_id, 0.0
        return place
