"""A sum tree: draw in proportion to weights, change weights, both in O(log n).

A complete binary tree in one array, the leaves from `leaves` on, node 1 the sum of all. A changed leaf has the sums
above it computed anew from their two children, so nothing drifts however often weights change (Schaul et al. 2016,
B.2.1).
"""

import numba
import numpy as np

from navi_core.errors import ConfigError


class SumTree:
    """Non-negative weights of n places.

    Args:
        size: n.

    Raises:
        ConfigError: `size` is below 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"a sum tree of {size} places; allowed: 1 or more")
        self.size = size
        self._leaves = 1 << (size - 1).bit_length()
        self._tree = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._tree[1])

    def weights(self, places: np.ndarray) -> np.ndarray:
        """Return the weights (N,) of places (N,) int64."""
        out: np.ndarray = self._tree[self._leaves + places]
        return out

    def set(self, places: np.ndarray, weights: np.ndarray) -> None:
        """Give places (N,) int64 new weights (N,) float64; of a place named twice the last counts.

        Raises:
            ConfigError: A place is out of range, or a weight negative or not finite; nothing has changed then.
        """
        if len(places) and not (places.min() >= 0 and places.max() < self.size):
            raise ConfigError(f"place {places.min()} … {places.max()} of a sum tree of {self.size}")
        if not bool(np.isfinite(weights).all()) or (len(weights) and weights.min() < 0):
            raise ConfigError("a weight of the sum tree is negative or not finite")
        _set(self._tree, self._leaves, places, weights)

    def draw(self, count: int, seed: int, number: int) -> np.ndarray:
        """Draw places (count,) int64 in proportion to their weights, one from each of `count` equal shares of the sum.

        Strata leave every place its expected number of draws, count · weight / total, and lower the spread around it.

        Args:
            count: Draws.
            seed: Seed.
            number: Number of this call; with the seed it determines the draws.

        Raises:
            ConfigError: All weights are zero.
        """
        if not self._tree[1] > 0:
            raise ConfigError("nothing can be drawn from a sum tree whose weights are all zero")
        return _draw(self._tree, self._leaves, count, np.uint64(seed), np.uint64(number))


@numba.njit(cache=True)
def _set(tree: np.ndarray, leaves: int, places: np.ndarray, weights: np.ndarray) -> None:
    for i in range(len(places)):
        node = leaves + places[i]
        tree[node] = weights[i]
        node >>= 1
        while node >= 1:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node >>= 1


@numba.njit(cache=True)
def _draw(tree: np.ndarray, leaves: int, count: int, seed: np.uint64, number: np.uint64) -> np.ndarray:
    places = np.empty(count, np.int64)
    for i in range(count):
        mass = (i + _uniform(seed, number, np.uint64(i))) / count * tree[1]
        node = 1
        while node < leaves:
            node *= 2
            # Rounding may carry the mass past the last weight: an empty right side is never entered.
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        places[i] = node - leaves
    return places


@numba.njit(cache=True)
def _uniform(seed: np.uint64, number: np.uint64, lane: np.uint64) -> float:
    """Return a uniform number in [0, 1): SplitMix64's finaliser over the three words (Steele, Lea & Flood 2014)."""
    x = _mix(seed + np.uint64(0x9E3779B97F4A7C15))
    x = _mix((x ^ number) + np.uint64(0x9E3779B97F4A7C15))
    x = _mix((x ^ lane) + np.uint64(0x9E3779B97F4A7C15))
    return np.float64(x >> np.uint64(11)) * 2.0**-53


@numba.njit(cache=True)
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
