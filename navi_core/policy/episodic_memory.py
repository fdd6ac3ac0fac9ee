"""Episodic memory: similarity of a row's view to the earlier views of its episode.

One ring buffer of unit embeddings per row, preallocated on the device and written in place; nothing
is ever rebuilt. An embedding is normalised once per tick, for the query and for the insertion; both
touch fixed shapes and are timed apart.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.errors import ConfigError


class EpisodicMemory:
    """Ring buffers of the embeddings of each row's current episode.

    Args:
        rows: Rows B.
        capacity: Embeddings kept in total; each row gets capacity // rows.
        width: Embedding width D.
        exclusion: Only memories at least this many steps old are compared.
        device: Device of the buffers.

    Raises:
        ConfigError: The capacity leaves a row without memory, or nothing older than `exclusion`.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        width: int,
        *,
        exclusion: int = 50,
        device: torch.device | str = "cpu",
    ) -> None:
        per_row = capacity // rows
        if per_row <= exclusion:
            raise ConfigError(
                f"memory_capacity {capacity} gives each of {rows} rows {per_row} steps, "
                f"not more than memory_exclusion {exclusion}; use at least {rows * (exclusion + 1)}"
            )
        self.rows, self.capacity, self.exclusion = rows, per_row, exclusion
        self._units = torch.zeros(rows, per_row, width, device=device)
        self._count = torch.zeros(rows, dtype=torch.int64, device=device)  # steps of the episode so far
        self._row = torch.arange(rows, device=device)
        self._slot = torch.arange(per_row, device=device)
        self._bound = 0  # host-side bound of the used slots, so a young memory is not read in full
        # Reading the exact count costs nothing on the CPU; on an accelerator it would synchronise.
        self._looks = self._count.device.type == "cpu"

    @staticmethod
    def unit(embedding: Tensor) -> Tensor:
        """Return embeddings (B, D) at unit length, as `query` and `append` take them."""
        return F.normalize(embedding.detach(), dim=-1)

    def query(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Compare unit embeddings (B, D) with the past of their rows.

        Returns:
            Highest cosine similarity (B,) to a memory at least `exclusion` steps old, and that
            memory's age (B,) [steps]; 0 and 0 where there is none.
        """
        used = self._used()
        if not used:
            return unit.new_zeros(self.rows), torch.zeros_like(self._count)
        # At count n, slot s holds step n−1−((n−1−s) mod capacity), i.e. is 1 + that remainder old.
        age = 1 + torch.remainder(self._count[:, None] - 1 - self._slot[:used], self.capacity)
        comparable = (age >= self.exclusion) & (age <= self._count[:, None])
        # (1, D) @ (D, n) runs at memory speed on CPU; (n, D) @ (D, 1) is 2–4 times slower.
        similarity = torch.bmm(unit[:, None], self._units[:, :used].transpose(1, 2)).squeeze(1)
        similarity = similarity.masked_fill(~comparable, -torch.inf)
        best, slot = similarity.max(dim=1)
        found = torch.isfinite(best)
        return torch.where(found, best, 0.0), torch.where(found, age.gather(1, slot[:, None]).squeeze(1), 0)

    def append(self, unit: Tensor) -> None:
        """Remember unit embeddings (B, D) as this step of their rows."""
        self._units[self._row, self._count % self.capacity] = unit
        self._count += 1
        self._bound = min(self._bound + 1, self.capacity)

    def clear(self, done: Tensor) -> None:
        """Forget the episode of every row where `done` (B,) is True."""
        self._count.masked_fill_(done, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory's content; only slots in use are copied, those that a row does not use are zero."""
        used = self._used()
        empty = self._slot[:used] >= self._count[:, None]
        return {"units": self._units[:, :used].masked_fill(empty[..., None], 0.0), "count": self._count.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ConfigError: The content is of other rows, width or a larger capacity.
        """
        units, count = state["units"], state["count"]
        rows, used, width = units.shape
        if rows != self.rows or width != self._units.shape[2] or used > self.capacity:
            raise ConfigError(f"memory {tuple(units.shape)} does not fit {tuple(self._units.shape)}")
        self._units[:, :used] = units.to(self._units.device)
        self._count.copy_(count)
        self._bound = used

    def _used(self) -> int:
        if self._looks:
            self._bound = min(int(self._count.max()), self.capacity)
        return self._bound
