"""Reward terms of the environment, batched tensors by name: Navi's ten, and custom ones.

Navi's come from the one observation of the step, the clearance, and the pose; constants are those of the
specification. Custom terms are registered by name, weighted like Navi's and computed from a `StepBatch`.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from navi_core.config import REWARD_TERMS, EnvConfig, RewardConfig
from navi_core.config.registry import Parts
from navi_core.config.world import REWARD_NAMES
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.kernels.native.library import Rewards, data_pointer
from navi_core.world.field import Field, RayHits
from navi_core.world.interface import StepBatch

NEAR_DISTANCE = 2.0
BAND_START = 1.5

HEADING_SECTORS = 16
_VISIT_BITS = 20
MOST_VISITS = 2**_VISIT_BITS - 1
STAMP_BIT = HEADING_SECTORS + _VISIT_BITS
STAMPS = 2 ** (63 - STAMP_BIT) - 1


def ahead_sector(azimuth_bins: int) -> int:
    """Return the number of azimuth bins on each side of the heading's seam that count as ahead."""
    return max(azimuth_bins // 6, 1)


def band_end(volume: float) -> float:
    """Return the far end [m] of the structure band (rewarded depth interval) of a scene of some volume [m³]."""
    return float(max(2.5, min(0.6 * volume ** (1 / 3), 50.0)))


def structure_of(hits: RayHits, band: torch.Tensor) -> torch.Tensor:
    """Mask the rays (B, Az·El) that hit within the structure band, which ends at `band` (B,) [m]."""
    return hits.valid & (hits.depth >= BAND_START) & (hits.depth <= band[:, None])


def structure_fractions(hits: RayHits, azimuth_bins: int, band: torch.Tensor) -> torch.Tensor:
    """Reduce a panorama to the four hit fractions that the rewards and the spawn score use.

    Args:
        hits: (B, Az·El).
        azimuth_bins: Az.
        band: (B,) far end of the structure band [m].

    Returns:
        (B, 4): starvation, the share of rays that miss; near, of those that hit within 2 m; band, of those that hit
        between 1.5 m and the scene's band; forward, the same over the first and last Az//6 azimuth bins.
    """
    structure = structure_of(hits, band)
    sector = ahead_sector(azimuth_bins) * (hits.depth.shape[1] // azimuth_bins)
    ahead = torch.cat([structure[:, :sector], structure[:, structure.shape[1] - sector :]], dim=1)
    near = hits.valid & (hits.depth <= NEAR_DISTANCE)
    return torch.stack([1.0 - _share(hits.valid), _share(near), _share(structure), _share(ahead)], dim=1)


def _share(mask: torch.Tensor) -> torch.Tensor:
    """Return the (B,) fraction of true entries of each row, by integer counts: bit-equal in any batch."""
    return mask.sum(dim=1).to(torch.float32) / mask.shape[1]


class RewardTerms:
    """Navi's ten reward terms and their visit counts, for B rows.

    Args:
        field: Gives bounds, volumes and the device.
        rows: Number of rows B.
        config: Weights.
        max_linear_speed: Speed that counts as 1 in the collision term [m/s].

    Attributes:
        visits: (B, cells) int64, what each exploration cell remembers: a bit for each of 16 heading sectors,
            20 bits of visits (which stay at the largest count), and above them the stamp of the episode that
            wrote it. Entries of another episode count as nothing, so that no table is ever cleared.
    """

    def __init__(self, field: Field, rows: int, config: RewardConfig, max_linear_speed: float) -> None:
        weights = config.resolved()
        device = field.device
        self._weights = torch.tensor([weights[name] for name in REWARD_TERMS], dtype=torch.float32, device=device)
        self._max_speed = max_linear_speed
        scenes = range(field.num_scenes)
        bounds = np.stack([field.bounds(i) for i in scenes])
        edge = np.array([min(max(field.volume(i) ** (1 / 3) / 10.0, 1.0), 4.0) for i in scenes])[:, None]
        # One cell of margin on each side takes the positions outside the surface's bounds.
        shape = np.ceil((bounds[:, 1] - bounds[:, 0]) / edge).astype(np.int64) + 2
        self._low = torch.from_numpy(bounds[:, 0] - edge).to(device, torch.float32)
        self._edge = torch.from_numpy(edge[:, 0]).to(device, torch.float32)
        self._shape = torch.from_numpy(shape).to(device)
        self._band = torch.tensor([band_end(field.volume(i)) for i in scenes], dtype=torch.float32, device=device)
        self.visits = torch.zeros((rows, int(shape.prod(axis=1).max())), dtype=torch.int64, device=device)
        self._neighbours = torch.tensor(
            [[0, 0, 0], [-1, 0, 0], [1, 0, 0], [0, -1, 0], [0, 1, 0], [0, 0, -1], [0, 0, 1]], device=device
        )

    def band(self, scene_index: torch.Tensor) -> torch.Tensor:
        """Return the (B,) far end of the structure band of each row's scene [m]."""
        return self._band[scene_index]

    def compute(
        self,
        *,
        position: torch.Tensor,
        moved: torch.Tensor,
        yaw: torch.Tensor,
        scene_index: torch.Tensor,
        stamp: torch.Tensor,
        clearance: torch.Tensor,
        clearance_before: torch.Tensor,
        now: torch.Tensor,
        before: torch.Tensor,
        collided: torch.Tensor,
        attempted_speed: torch.Tensor,
        view_gain: torch.Tensor,
    ) -> torch.Tensor:
        """Compute the (B, 10) unweighted reward terms in the order of `REWARD_TERMS` and count the visit.

        Args:
            position: (B, 3) after the decision [m].
            moved: (B,) ‖Δp‖ [m].
            yaw: (B,) [rad].
            scene_index: (B,) int64.
            stamp: (B,) int64, another one in every episode of a row, at least 1.
            clearance: (B,) now [m].
            clearance_before: (B,) at the decision before [m].
            now: (B, 4) starvation, near, band, forward of the new panorama.
            before: (B, 4) of the panorama before.
            collided: (B,) bool.
            attempted_speed: (B,) [m/s].
            view_gain: (B,) newly seen floor [m²].
        """
        exploration = self.explore(position, yaw, scene_index, stamp) * clearance.clamp(0.0, 1.0)
        starvation, near, band, forward = now.unbind(dim=1)
        close = (clearance <= 3.0) | (clearance_before <= 3.0)
        cleared = torch.where(close, 0.6 * ((clearance - clearance_before) / 3.0).clamp(-1.0, 1.0), 0.0)
        starved = 0.35 * (starvation - 0.2).clamp(min=0.0) + (starvation - 0.8).clamp(min=0.0)
        seen_structure = (band >= 0.05) | (forward >= 0.05)
        change = (band - before[:, 2]) + 0.5 * (forward - before[:, 3])
        inspection = torch.where(seen_structure, 0.25 * change.clamp(-1.0, 1.0), 0.0)
        hit = torch.where(collided, -2.0 * (1.0 + (attempted_speed / self._max_speed).clamp(max=1.0)), 0.0)
        return torch.stack(
            [
                exploration,
                0.8 * moved * (1.0 - near),
                cleared,
                -1.5 * starved.clamp(max=1.0),
                -0.8 * near,
                0.35 * band,
                0.2 * forward,
                inspection,
                hit,
                view_gain,
            ],
            dim=1,
        )

    def for_kernels(self) -> Rewards:
        """Return the ctypes struct of the rewards for the C++ kernels; valid as long as these terms."""
        return Rewards(
            weights=data_pointer(self._weights, torch.float32),
            low=data_pointer(self._low, torch.float32),
            edge=data_pointer(self._edge, torch.float32),
            shape=data_pointer(self._shape, torch.int64),
            band=data_pointer(self._band, torch.float32),
            visits=data_pointer(self.visits, torch.int64),
            cells=self.visits.shape[1],
            max_speed=self._max_speed,
        )

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Sum the (B, 10) terms to the (B,) weighted reward, in a fixed order."""
        # A fixed order of additions: a matrix product may round differently in another batch.
        first, *others = (terms * self._weights).unbind(dim=1)
        total = first.clone()
        for term in others:
            total += term
        return total

    def explore(
        self, position: torch.Tensor, yaw: torch.Tensor, scene_index: torch.Tensor, stamp: torch.Tensor
    ) -> torch.Tensor:
        """Compute the (B,) exploration term, not yet weighted by clearance, and count the visit; see `compute`."""
        shape = self._shape[scene_index]
        raw = ((position - self._low[scene_index]) / self._edge[scene_index, None]).floor().to(torch.int64)
        cell = torch.minimum(raw.clamp(min=0), shape - 1)
        # The cell itself and its six neighbours; one outside the grid counts as unvisited.
        around = cell[:, None] + self._neighbours
        inside = ((around >= 0) & (around < shape[:, None])).all(dim=2)
        around = torch.minimum(around.clamp(min=0), shape[:, None] - 1)
        flat = (around[..., 0] * shape[:, None, 1] + around[..., 1]) * shape[:, None, 2] + around[..., 2]
        stamp = stamp[:, None] & STAMPS
        known = self.visits.gather(1, flat)
        known = torch.where((known >> STAMP_BIT) == stamp, known, 0)
        visits = known >> HEADING_SECTORS & MOST_VISITS
        unvisited = ((visits == 0) | ~inside)[:, 1:].sum(dim=1)
        sector = (yaw * (HEADING_SECTORS / (2.0 * math.pi))).to(torch.int64).clamp(0, HEADING_SECTORS - 1)
        headings = known[:, 0] & (2**HEADING_SECTORS - 1)
        visits, bit = visits[:, 0], torch.ones_like(sector) << sector
        updated = headings | bit | ((visits + 1).clamp(max=MOST_VISITS) << HEADING_SECTORS)
        self.visits.scatter_(1, flat[:, :1], (updated | stamp[:, 0] << STAMP_BIT)[:, None])
        term: torch.Tensor = (
            (1.0 + visits).reciprocal() * 0.3 + 0.05 * ((headings & bit) == 0) + 0.1 * (unvisited / 6.0)
        )
        return term


RewardTerm = Callable[[StepBatch, torch.Tensor], torch.Tensor]
"""Callable reward term: (B,) float32 of a step and its executed (B, 4) actions in [−1, 1]."""

REWARDS: Parts[Callable[[EnvConfig], RewardTerm]] = Parts(
    REWARD_NAMES,
    """Enter a reward term under a name, which `env.reward.weights` then weighs; or as `@register_reward("mine")`.

    The factory is called with the `EnvConfig` and returns the term: a function of a `StepBatch`, as Navi's own terms
    leave it, and of the (B, 4) actions in [−1, 1], that returns (B,) numbers. A row's number hangs on that row of that
    step alone, so that drones fly alike in any batch and a run resumes exactly. A reward with memory needs a custom
    environment. The gate's expected reward and the viewers' terms know Navi's alone.
    """,
)
"""Plugin registry of reward terms by name; Navi's are computed by `RewardTerms` and the kernels."""
register_reward = REWARDS.register


def _computed(name: str) -> Callable[[EnvConfig], RewardTerm]:
    return lambda _config: lambda batch, _action: batch.info["reward_terms"][name]


for _name in REWARD_TERMS:
    register_reward(_name, _computed(_name))


class CustomRewards:
    """Custom (user-registered) reward terms of an environment; those of weight 0 are recorded only.

    Args:
        config: Settings of the environment.

    Raises:
        ConfigError: A term is not registered, or is built as what cannot be called.
    """

    def __init__(self, config: EnvConfig) -> None:
        weights = config.reward.resolved()
        self._terms: dict[str, tuple[RewardTerm, float]] = {}
        for name in sorted(weights.keys() - set(REWARD_TERMS)):
            term = REWARDS[name](config)
            if not callable(term):
                raise ConfigError(f"reward term {name!r} is built as {type(term).__name__}, which cannot be called")
            self._terms[name] = term, weights[name]

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add_to(self, batch: StepBatch, action: torch.Tensor, returns: torch.Tensor) -> StepBatch:
        """Add the custom reward terms to a step's result.

        Args:
            batch: The step without them.
            action: (B, 4) as asked for.
            returns: (B,) sums of the rewards of the episodes that go on, changed in place.

        Raises:
            ConfigError: A term returns something else than (B,) numbers.
            NonFiniteError: On the CPU, a term is NaN or infinite; the step has been flown.
        """
        action = action.clamp(-1.0, 1.0)
        terms = {name: self._checked(name, term(batch, action), batch) for name, (term, _) in self._terms.items()}
        extra = torch.zeros_like(batch.reward)
        for name, value in terms.items():
            extra = extra + self._terms[name][1] * value
        returns += torch.where(batch.truncated | batch.terminated, 0.0, extra)
        info = batch.info.copy()
        info["reward_terms"] = info["reward_terms"] | terms
        info["episode_return"] = info["episode_return"] + extra
        return replace(batch, reward=batch.reward + extra, info=info)

    @staticmethod
    def _checked(name: str, value: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or value.shape != batch.reward.shape:
            found = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"reward term {name!r} returned {found}, expected ({len(batch.reward)},): one a drone")
        value = value.detach().to(batch.reward)
        if value.device.type == "cpu" and not value.isfinite().all():
            row = int(value.isfinite().logical_not().nonzero()[0])
            raise NonFiniteError(name, f"reward term {name!r} is {float(value[row])} in row {row}, not finite")
        return value
