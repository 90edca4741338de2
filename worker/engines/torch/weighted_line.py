"""A line through the latest points, by least squares with decaying sums."""

import math

LEAST_SPREAD = 0.05  # of the points' x, relative to their mean; below it they tell nothing of a slope


class WeightedLine:
    """A point's weight is also how much of the earlier ones it makes forgotten: of `memory` all but a third."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._weight = 0.0
        self._x = 0.0
        self._y = 0.0
        self._x_squared = 0.0
        self._xy = 0.0

    def add(self, weight: float, x: float, y: float) -> None:
        kept = math.exp(-weight / self._memory)
        self._weight = kept * self._weight + weight
        self._x = kept * self._x + weight * x
        self._y = kept * self._y + weight * y
        self._x_squared = kept * self._x_squared + weight * x * x
        self._xy = kept * self._xy + weight * x * y

    @property
    def means(self) -> tuple[float, float] | None:
        """The mean x and y; None before the first point."""
        return None if self._weight == 0.0 else (self._x / self._weight, self._y / self._weight)

    def line(self) -> tuple[float, float] | None:
        """(y at x = 0, slope); None where the points are too close together to tell."""
        if self.means is None:
            return None
        mean_x, mean_y = self.means
        variance = self._x_squared / self._weight - mean_x**2
        if variance < (LEAST_SPREAD * mean_x) ** 2 or variance <= 0.0:
            return None
        slope = (self._xy / self._weight - mean_x * mean_y) / variance
        return mean_y - slope * mean_x, slope
