"""Prioritised replay buffer with exact proportional sampling by a sum tree (Schaul et al. 2016).

Items are opaque: a batch is a mapping of tensors with a common leading axis, and storage takes their types and shapes
from the first batch, so compact observations stay compact.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from navi_core.errors import CheckpointError, ConfigError
from navi_core.machine import whole_memory


class SumTree:
    """Sum tree over n non-negative weights: proportional sampling and updates in O(log n).

    A complete binary tree in one array: leaves from index `leaves` on, the root (total) at node 1. An update recomputes
    the sums above a leaf from their two children, so no rounding error accumulates (appendix B.2.1).

    Args:
        size: Number of leaves n, at least 1.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._leaves = 1 << (size - 1).bit_length()
        self._tree = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Sum of all weights (the root)."""
        return float(self._tree[1])

    def weights(self, places: np.ndarray) -> np.ndarray:
        """Return the weights (N,) of leaves (N,) int64."""
        out: np.ndarray = self._tree[self._leaves + places]
        return out

    def set(self, places: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights (N,) float64 of leaves (N,) int64; for a repeated leaf the last weight counts.

        Raises:
            ConfigError: A place is out of range, or a weight negative or not finite; nothing has changed then.
        """
        if len(places) and not (places.min() >= 0 and places.max() < self.size):
            raise ConfigError(f"place {places.min()} … {places.max()} of a sum tree of {self.size}")
        if not bool(np.isfinite(weights).all()) or (len(weights) and weights.min() < 0):
            raise ConfigError("a weight of the sum tree is negative or not finite")
        _set(self._tree, self._leaves, places, weights)

    def draw(self, count: int, seed: int, number: int) -> np.ndarray:
        """Sample leaves (count,) int64 in proportion to their weights, stratified over `count` equal shares of the sum.

        Stratification keeps each leaf's expected number of draws, count · weight / total, and lowers the variance.

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
    """Hash three words to a uniform number in [0, 1): SplitMix64's finaliser (Steele, Lea & Flood 2014)."""
    x = _mix(seed + np.uint64(0x9E3779B97F4A7C15))
    x = _mix((x ^ number) + np.uint64(0x9E3779B97F4A7C15))
    x = _mix((x ^ lane) + np.uint64(0x9E3779B97F4A7C15))
    return np.float64(x >> np.uint64(11)) * 2.0**-53


@numba.njit(cache=True)
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_MOST_OF_MEMORY = 0.8
_TREE_BYTES = 32
"""Upper bound of the sum tree's memory per item [bytes]: two float64 per leaf, leaves padded to a power of two."""


class Replay(ABC):
    """Abstract replay buffer for gradient steps: items in this process's memory, or in shards of a distributed run.

    Attributes:
        alpha: Exponent of the priorities; 0 samples uniformly and keeps no priorities.
        beta0: Initial exponent β of the importance weights (N·P)^−β.
        beta: Current exponent β.
        added: Items ever added.
    """

    alpha: float
    beta0: float
    beta: float
    added: int

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items in the buffer."""

    @abstractmethod
    def sample(self, n: int) -> tuple[dict[str, Tensor], Any, Tensor]:
        """Sample n items: their tensors by name, their indices, their importance weights."""

    @abstractmethod
    def update(self, indices: Any, priorities: Tensor) -> None:  # noqa: ANN401 (places as `sample` returned them)
        """Update the priorities of items at the indices that `sample` returned."""

    def anneal(self, share: float) -> None:
        """Anneal the exponent β of the importance weights linearly from β₀ to 1.

        Args:
            share: Fraction of the schedule done, clamped to [0, 1].
        """
        self.beta = self.beta0 + (1.0 - self.beta0) * min(max(share, 0.0), 1.0)


class PrioritizedReplay(Replay):
    """Ring buffer of items, sampled with probability P(i) = p_i^α / Σ p^α (prioritised experience replay).

    Args:
        capacity: Items kept; the oldest are overwritten.
        alpha: Exponent of priorities; 0 draws uniformly.
        beta0: Initial exponent β of the importance weights (N·P)^−β; `anneal` raises it.
        seed: Seed of the sampling.
        device: Device of the items.

    Attributes:
        beta: Current exponent β of the importance weights.
        added: Items ever added.

    Raises:
        ConfigError: The capacity is below 1, or an exponent out of range.
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta0: float = 0.4,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1 or alpha < 0 or not 0 <= beta0 <= 1:
            raise ConfigError(
                f"replay of capacity {capacity}, alpha {alpha}, beta0 {beta0}; allowed: capacity ≥ 1, alpha ≥ 0, "
                "beta0 from 0 to 1"
            )
        self.capacity, self.alpha, self.beta0, self.seed = capacity, alpha, beta0, seed
        self.device = torch.device(device)
        self.beta = beta0
        self.added = 0
        self._draws = 0
        self._largest = 1.0
        self._fields: dict[str, Tensor] = {}
        self._check_memory(_TREE_BYTES)
        self._tree = SumTree(capacity)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def nbytes(self) -> int:
        """Memory allocated for the items [bytes]."""
        return sum(x.nbytes for x in self._fields.values())

    def priorities(self, places: Tensor | None = None) -> Tensor:
        """Return the priorities p^α (N,) float64 of the items at indices (N,), by default of all; for statistics."""
        indices = np.arange(len(self)) if places is None else places.cpu().numpy()
        return torch.from_numpy(self._tree.weights(indices).copy())

    def probabilities(self, places: Tensor) -> Tensor:
        """Return the sampling probability P(i) (n,) float64 of the items at indices (n,)."""
        weights = self._tree.weights(places.cpu().numpy())
        return torch.from_numpy(weights / self._tree.total)

    def add(self, batch: Mapping[str, Any], priorities: ArrayLike | Tensor | None = None) -> Tensor:
        """Append a batch of items to the ring buffer, with their priorities.

        Args:
            batch: Tensors or arrays (N, …) by name; the first batch sets names, types and shapes.
            priorities: (N,) positive priorities, usually |temporal difference|; None gives the largest so far.

        Returns:
            (N,) int64 indices of the items in the buffer, valid until they are overwritten.

        Raises:
            ConfigError: Names, shapes or types differ from the first batch's, the batch exceeds the capacity or
                memory, or a priority is not a positive number.
        """
        tensors = {name: torch.as_tensor(x) for name, x in batch.items()}
        count = self._check(tensors)
        weights = self._weights(priorities, count)
        places = (self.added + np.arange(count)) % self.capacity
        index = torch.from_numpy(places).to(self.device)
        for name, x in tensors.items():
            self._fields[name].index_copy_(0, index, x.to(self.device))
        self._tree.set(places, weights)
        self.added += count
        return index

    def sample(self, n: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Sample n items with replacement, in proportion to p^α.

        Args:
            n: Number of items.

        Returns:
            The items' tensors (n, …) by name; their indices (n,) int64; their importance weights (N·P)^−β, divided by
            the largest of the batch, (n,) float32.

        Raises:
            ConfigError: The replay is empty, or n below 1.
        """
        if n < 1 or not len(self):
            raise ConfigError(f"{n} items asked of a replay that holds {len(self)}")
        places = self._tree.draw(n, self.seed, self._draws)
        self._draws += 1
        index = torch.from_numpy(places).to(self.device)
        # (N·P)^−β up to a factor that the division by the largest takes away.
        inverse = self._tree.weights(places) ** -self.beta
        weights = torch.from_numpy((inverse / inverse.max()).astype(np.float32)).to(self.device)
        return {name: x.index_select(0, index) for name, x in self._fields.items()}, index, weights

    def update(self, indices: object, priorities: ArrayLike | Tensor) -> None:
        """Update the priorities of items, usually |temporal difference| after a gradient step.

        Args:
            indices: Buffer indices (n,), as `sample` or `add` returned them.
            priorities: (n,) positive priorities.

        Raises:
            ConfigError: A place holds no item, or a priority is not a positive number.
        """
        places = np.ascontiguousarray(torch.as_tensor(indices).cpu().numpy(), dtype=np.int64)
        if len(places) and not (places.min() >= 0 and places.max() < len(self)):
            raise ConfigError(f"places {places.min()} … {places.max()} of a replay that holds {len(self)} items")
        self._tree.set(places, self._weights(priorities, len(places)))

    def _weights(self, priorities: ArrayLike | Tensor | None, count: int) -> np.ndarray:
        if priorities is None:
            return np.full(count, self._largest**self.alpha)
        values = torch.as_tensor(priorities).detach().to("cpu", torch.float64).numpy()
        if values.shape != (count,) or not bool(np.isfinite(values).all() and (values > 0).all()):
            raise ConfigError(f"priorities must be {count} positive finite numbers, one for each item")
        if count:
            self._largest = max(self._largest, float(values.max()))
        return values**self.alpha

    def _check(self, tensors: dict[str, Tensor]) -> int:
        """Validate a batch and return its number of items; allocate the storage on the first batch."""
        if not tensors:
            raise ConfigError("a batch of replay items holds no tensor")
        counts = {name: x.shape[0] if x.ndim else -1 for name, x in tensors.items()}
        count = next(iter(counts.values()))
        if len(set(counts.values())) > 1 or count < 0:
            raise ConfigError(f"replay items need one common leading axis; here: {counts}")
        if count > self.capacity:
            raise ConfigError(f"{count} items at once exceed the replay's capacity {self.capacity}")
        if not self._fields:
            self._allocate({name: (tuple(x.shape[1:]), x.dtype) for name, x in tensors.items()})
        kept = {name: (tuple(x.shape[1:]), x.dtype) for name, x in self._fields.items()}
        given = {name: (tuple(x.shape[1:]), x.dtype) for name, x in tensors.items()}
        if kept != given:
            raise ConfigError(f"replay items are {kept}, this batch is {given}")
        return count

    def _allocate(self, kinds: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        size = sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in kinds.values())
        if self.device.type == "cpu":
            self._check_memory(size)
        self._fields = {
            name: torch.zeros((self.capacity, *shape), dtype=dtype, device=self.device)
            for name, (shape, dtype) in kinds.items()
        }

    def _check_memory(self, size: int) -> None:
        needed, there = size * self.capacity, whole_memory()
        if there is not None and needed > _MOST_OF_MEMORY * there:
            raise ConfigError(
                f"a replay of {self.capacity:,} items of {size:,} bytes needs {needed / 2**30:.1f} GiB; the machine, "
                f"or the share of it that is given here, has {there / 2**30:.1f}; lower replay.capacity"
            )

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return items, priorities and counters on the CPU, cut to the current number of items.

        Args:
            copy: Whether to copy items that are on the CPU already. If False, the items of a replay that is at least
                half full are views, to be written at once; torch saves a view together with its whole storage.
        """
        here = len(self)
        copy = copy or 2 * here < self.capacity
        return {
            "capacity": self.capacity,
            "added": self.added,
            "draws": self._draws,
            "beta": self.beta,
            "largest": self._largest,
            "weights": torch.from_numpy(self._tree.weights(np.arange(here)).copy()),
            "fields": {name: x[:here].to("cpu", copy=copy) for name, x in self._fields.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore items, priorities and counters from a `state_dict`.

        Raises:
            CheckpointError: The state is of another capacity, or its parts do not fit each other.
        """
        try:
            fields: dict[str, Tensor] = dict(state["fields"])
            weights = np.ascontiguousarray(state["weights"].numpy(), dtype=np.float64)
            added, here = int(state["added"]), len(weights)
            counts = {name: len(x) for name, x in fields.items()}
            if state["capacity"] != self.capacity or here != min(added, self.capacity) or added < 0:
                raise ValueError(f"{here} items of {added}, of a replay of capacity {state['capacity']}")
            if any(count != here for count in counts.values()) or (here and not fields):
                raise ValueError(f"{here} priorities for {counts}")
            tree = SumTree(self.capacity)
            tree.set(np.arange(here), weights)
            rest = int(state["draws"]), float(state["beta"]), float(state["largest"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the replay does not fit this run of capacity {self.capacity}: {error}") from None
        self._fields = {}
        if fields:
            self._allocate({name: (tuple(x.shape[1:]), x.dtype) for name, x in fields.items()})
            for name, x in fields.items():
                self._fields[name][:here] = x.to(self.device)
        self.added, self._tree = added, tree
        self._draws, self.beta, self._largest = rest
