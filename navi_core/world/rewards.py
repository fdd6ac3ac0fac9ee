"""The environment's reward terms, each a batched tensor by name (nine of the source system, and view_gain).

Everything comes from the one observation of the step, the clearance, and the pose; constants are
those of the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from navi_core.config import REWARD_TERMS, RewardConfig
from navi_core.world.field import Field, RayHits

__all__ = ["Perception", "RewardTerms", "structure_fractions"]

NEAR_DISTANCE = 2.0
BAND_START = 1.5
HEADING_SECTORS = 16


@dataclass
class Perception:
    """What the reward reads from one panorama.

    Attributes:
        starvation: (B,) share of rays that miss.
        near: (B,) share of rays that hit within 2 m.
        band: (B,) share of rays that hit between 1.5 m and the scene's band.
        forward: (B,) the same share over the first and last Az//6 azimuth bins.
    """

    starvation: torch.Tensor
    near: torch.Tensor
    band: torch.Tensor
    forward: torch.Tensor

    def select(self, mask: torch.Tensor, other: Perception) -> Perception:
        """Return `other` where the (B,) mask is true, self elsewhere."""
        return Perception(
            torch.where(mask, other.starvation, self.starvation),
            torch.where(mask, other.near, self.near),
            torch.where(mask, other.band, self.band),
            torch.where(mask, other.forward, self.forward),
        )


def structure_fractions(hits: RayHits, azimuth_bins: int, band: torch.Tensor) -> Perception:
    """Reduce a panorama to the fractions that the rewards and the spawn score use.

    Args:
        hits: (B, Az·El).
        azimuth_bins: Az.
        band: (B,) far end of the structure band [m].
    """
    rays = hits.depth.shape[1]
    elevations = rays // azimuth_bins
    valid, depth = hits.valid, hits.depth
    structure = valid & (depth >= BAND_START) & (depth <= band[:, None])
    sector = max(azimuth_bins // 6, 1) * elevations
    ahead = torch.cat([structure[:, :sector], structure[:, rays - sector :]], dim=1)
    return Perception(
        starvation=1.0 - _share(valid),
        near=_share(valid & (depth <= NEAR_DISTANCE)),
        band=_share(structure),
        forward=_share(ahead),
    )


def _share(mask: torch.Tensor) -> torch.Tensor:
    """Return (B,) the true share of each row; integer counts, so the batch cannot change a bit."""
    return mask.sum(dim=1).to(torch.float32) / mask.shape[1]


class RewardTerms:
    """Computes the terms and keeps the visit counts they need.

    Args:
        field: Gives bounds and volumes.
        rows: Number of rows B.
        config: Weights.
        max_linear_speed: Speed that counts as 1 in the collision term [m/s].

    Attributes:
        visits: (B, cells) int32 visits of each exploration cell in the row's episode.
        headings: (B, cells) int32, a bit for each of 16 heading sectors seen in the cell.
    """

    def __init__(self, field: Field, rows: int, config: RewardConfig, max_linear_speed: float) -> None:
        weights = config.resolved()
        self._weights = torch.tensor([weights[name] for name in REWARD_TERMS], dtype=torch.float32)
        self._max_speed = max_linear_speed
        low, size, shape, band = [], [], [], []
        for i in range(field.num_scenes):
            lower, upper = field.bounds(i)
            edge = min(max(field.volume(i) ** (1 / 3) / 10.0, 1.0), 4.0)
            # One cell of margin on each side takes the positions outside the surface's bounds.
            low.append(torch.from_numpy(lower - edge))
            size.append(edge)
            shape.append([math.ceil(float(e) / edge) + 2 for e in upper - lower])
            band.append(max(2.5, min(0.6 * field.volume(i) ** (1 / 3), 50.0)))
        self._low = torch.stack(low).to(torch.float32)
        self._edge = torch.tensor(size, dtype=torch.float32)
        self._shape = torch.tensor(shape, dtype=torch.int64)
        self._band = torch.tensor(band, dtype=torch.float32)
        cells = int(self._shape.prod(dim=1).max())
        self.visits = torch.zeros((rows, cells), dtype=torch.int32)
        self.headings = torch.zeros((rows, cells), dtype=torch.int32)
        self._rows = torch.arange(rows)

    def band(self, scene_index: torch.Tensor) -> torch.Tensor:
        """Return (B,) far end of the structure band of each row's scene [m]."""
        return self._band[scene_index]

    def forget(self, done: torch.Tensor) -> None:
        """Clear the visits of the rows whose episode ended; `done` is (B,) bool."""
        keep = (~done).to(torch.int32)[:, None]
        self.visits *= keep
        self.headings *= keep

    def compute(
        self,
        *,
        position: torch.Tensor,
        moved: torch.Tensor,
        yaw: torch.Tensor,
        scene_index: torch.Tensor,
        clearance: torch.Tensor,
        clearance_before: torch.Tensor,
        now: Perception,
        before: Perception,
        collided: torch.Tensor,
        attempted_speed: torch.Tensor,
        view_gain: torch.Tensor,
    ) -> torch.Tensor:
        """Return the (B, 10) unweighted terms in the order of `REWARD_TERMS` and count the visit.

        Args:
            position: (B, 3) after the decision [m].
            moved: (B,) ‖Δp‖ [m].
            yaw: (B,) [rad].
            scene_index: (B,) int64.
            clearance: (B,) now [m].
            clearance_before: (B,) at the decision before [m].
            now: Fractions of the new observation.
            before: Fractions of the observation before.
            collided: (B,) bool.
            attempted_speed: (B,) [m/s].
            view_gain: (B,) newly seen floor [m²].
        """
        exploration = self._exploration(position, yaw, scene_index) * clearance.clamp(0.0, 1.0)
        progress = 0.8 * moved * (1.0 - now.near)
        close = (clearance <= 3.0) | (clearance_before <= 3.0)
        cleared = torch.where(close, 0.6 * ((clearance - clearance_before) / 3.0).clamp(-1.0, 1.0), 0.0)
        s = now.starvation
        starved = -1.5 * (0.35 * (s - 0.2).clamp(min=0.0) + (s - 0.8).clamp(min=0.0)).clamp(max=1.0)
        seen_structure = (now.band >= 0.05) | (now.forward >= 0.05)
        change = (now.band - before.band) + 0.5 * (now.forward - before.forward)
        inspection = torch.where(seen_structure, 0.25 * change.clamp(-1.0, 1.0), 0.0)
        hit = torch.where(collided, -2.0 * (1.0 + (attempted_speed / self._max_speed).clamp(max=1.0)), 0.0)
        return torch.stack(
            [
                exploration,
                progress,
                cleared,
                starved,
                -0.8 * now.near,
                0.35 * now.band,
                0.2 * now.forward,
                inspection,
                hit,
                view_gain,
            ],
            dim=1,
        )

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the (B,) weighted reward of (B, 10) terms."""
        # A fixed order of additions: a matrix product may round differently in another batch.
        total = terms[:, 0] * self._weights[0]
        for i in range(1, terms.shape[1]):
            total = total + terms[:, i] * self._weights[i]
        return total

    def _exploration(self, position: torch.Tensor, yaw: torch.Tensor, scene_index: torch.Tensor) -> torch.Tensor:
        shape = self._shape[scene_index]
        raw = ((position - self._low[scene_index]) / self._edge[scene_index, None]).floor().to(torch.int64)
        cell = torch.minimum(raw.clamp(min=0), shape - 1)
        flat = self._flat(cell, shape)
        visits = self.visits[self._rows, flat]
        sector = (yaw * (HEADING_SECTORS / (2.0 * math.pi))).to(torch.int64).clamp(0, HEADING_SECTORS - 1)
        bit = torch.ones_like(visits) << sector.to(torch.int32)
        seen = self.headings[self._rows, flat]
        unvisited = torch.zeros(len(position))
        for axis in range(3):
            for side in (-1, 1):
                step = torch.zeros(3, dtype=torch.int64)
                step[axis] = side
                inside = (cell[:, axis] + side >= 0) & (cell[:, axis] + side < shape[:, axis])
                neighbour = torch.minimum((cell + step).clamp(min=0), shape - 1)
                count = self.visits[self._rows, self._flat(neighbour, shape)]
                unvisited += ((count == 0) | ~inside).to(torch.float32)
        reward = 0.3 / (1.0 + visits) + 0.05 * ((seen & bit) == 0) + 0.1 * (unvisited / 6.0)
        self.visits[self._rows, flat] = visits + 1
        self.headings[self._rows, flat] = seen | bit
        return reward

    @staticmethod
    def _flat(cell: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        return (cell[:, 0] * shape[:, 1] + cell[:, 1]) * shape[:, 2] + cell[:, 2]
