"""Point-goal navigation: goals, geodesic shortest paths to them, and the success criterion.

Path lengths are geodesic distances through the scene's reachable voxels, kept for every goal and voxel, so that a step
looks them up. A goal is reached where the drone is within the success radius and has stopped (Anderson et al. 2018, On
evaluation of embodied navigation agents, arXiv:1807.06757).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import GoalConfig
from navi_core.errors import ConfigError, SceneError
from navi_core.mapping.search import geodesic_distance
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import cos_sin
from navi_core.world.floor.reachable import FloorMap

_MOST_BYTES = 4 << 30
"""Memory limit of the distance fields to all goals [bytes]."""
_CORNERS = torch.tensor(list(np.ndindex(2, 2, 2)))


def relative_goal(position: torch.Tensor, yaw: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Transform goals into the drone's frame, as the policy observes them.

    Args:
        position: (B, 3) [m].
        yaw: (B,) [rad].
        goal: (B, 3) [m].

    Returns:
        (B, 4): log1p of the horizontal distance d [m]; the metres ahead and to the left, each over 1 + d, a bearing
        that fades near the goal, where that of a drone that flies past would jump; and the height above the drone [m].
    """
    gap = goal - position
    cos, sin = cos_sin(yaw)
    ahead, left = -gap[:, 0] * sin - gap[:, 2] * cos, -gap[:, 0] * cos + gap[:, 2] * sin
    away = torch.sqrt(ahead * ahead + left * left)
    return torch.stack([torch.log1p(away), ahead / (1 + away), left / (1 + away), gap[:, 1]], dim=1)


def reached(position: torch.Tensor, speed: torch.Tensor, goal: torch.Tensor, config: GoalConfig) -> torch.Tensor:
    """Success criterion: (B,) bool, within the success radius of the goal (B, 3) and stopped; speed (B,) [m/s]."""
    return _near(position, goal, config) & (speed <= config.stop_speed)


def _near(position: torch.Tensor, goal: torch.Tensor, config: GoalConfig) -> torch.Tensor:
    """Return a (B,) bool mask: is the drone within the success radius of the goal (B, 3)?"""
    gap = goal - position
    away = gap[:, 0] * gap[:, 0] + gap[:, 1] * gap[:, 1] + gap[:, 2] * gap[:, 2]
    return away <= config.success_radius**2


def way_to(floor: FloorMap, goal: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Compute the geodesic distance field (nx, ny, nz) [m] of a goal (3,) at each reachable voxel's centre.

    Raises:
        SceneError: The point does not lie in a reachable voxel.
    """
    place = (np.asarray(goal, np.float64) - floor.corner) / floor.cell
    index = np.floor(place).astype(np.int64)
    inside = ((index >= 0) & (index < floor.free.shape)).all()
    if not inside or not floor.free[tuple(index)]:
        raise SceneError(f"a goal at {np.round(goal, 2).tolist()} is not reachable; take a place in free space")
    ways = np.empty(floor.free.shape, np.float32)
    geodesic_distance(floor.free, place, ways)
    return ways * np.float32(floor.cell)


def way_lengths(
    floor: FloorMap, ways: npt.NDArray[np.float32], points: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Interpolate the geodesic distance [m] to the goal at each of the points (N, 3).

    It is interpolated between those of the 8 voxels around a point that can be reached; infinite where there is none.

    Args:
        floor: Reachable voxels of the scene.
        ways: From `way_to`.
        points: Start points [m].
    """
    place = torch.from_numpy((np.asarray(points, np.float64) - floor.corner) / floor.cell - 0.5)
    flat, weight = _corners_around(place, torch.tensor([ways.shape]), _CORNERS)
    length, known = _interpolated(torch.from_numpy(ways.reshape(-1))[flat], weight)
    found: npt.NDArray[np.float64] = torch.where(known, length, math.inf).numpy()
    return found


def _corners_around(
    place: torch.Tensor, shape: torch.Tensor, corners: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return flat indices (B, 8) and trilinear weights of the voxels around positions (B, 3) [voxel] in grids (B, 3).

    A voxel outside the grid has the weight 0 and the index of one at the edge.
    """
    index = place.floor().to(torch.int64)[:, None] + corners
    inside = ((index >= 0) & (index < shape[:, None])).all(dim=2)
    at = torch.minimum(index.clamp(min=0), shape[:, None] - 1)
    near = 1.0 - (index.to(torch.float64) - place[:, None]).abs()
    flat = (at[..., 0] * shape[:, None, 1] + at[..., 1]) * shape[:, None, 2] + at[..., 2]
    return flat, torch.where(inside, near[..., 0] * near[..., 1] * near[..., 2], 0.0)


def _interpolated(ways: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Interpolate distances (B, 8): weighted mean (B,) of the finite ones, and a (B,) mask of where one is finite."""
    weight = torch.where(torch.isfinite(ways), weight, 0.0)
    parts = (torch.where(weight > 0, ways, 0.0) * weight).unbind(dim=1)
    total, weights = sum(parts[1:], parts[0]), sum(weight.unbind(dim=1)[1:], weight[:, 0])
    return total / torch.where(weights > 0, weights, 1.0), weights > 0


def _fitting(lengths: npt.NDArray[np.floating], least: float) -> npt.NDArray[np.int64]:
    """Filter goals by path length: return the indices of those at least `least` away; else reachable ones; else all."""
    for fit in (np.isfinite(lengths) & (lengths >= least), np.isfinite(lengths)):
        if fit.any():
            return np.flatnonzero(fit)
    return np.arange(len(lengths))


class Goals:
    """Goals of the rows of a point-goal environment, with their geodesic distance fields.

    Each scene has `per_scene` goals, drawn from its reachable voxels by the seed. An episode's goal is drawn among
    those whose way from its spawn is at least `min_distance` long (any that can be reached, where there is none).

    Args:
        floors: Reachable floor of each scene.
        spawns: (S, P, 3) spawn positions [m].
        count: (S,) entries of each scene's pool.
        config: Settings of the goals.
        rows: (B,) int64 indices of the rows among those of the run.
        seed: Seed of the goals' positions; their assignment to rows is drawn with the seed of `begin`.
        device: Device of the goals.

    Attributes:
        index: (B,) int64 goal of each row, among those of its scene.
        way: (B,) float32 length of the way that is left [m].

    Raises:
        ConfigError: The ways would take too much memory.
    """

    def __init__(
        self,
        floors: list[FloorMap],
        spawns: torch.Tensor,
        count: torch.Tensor,
        config: GoalConfig,
        rows: torch.Tensor,
        seed: int,
        device: torch.device,
    ) -> None:
        self.config, self._rows = config, rows
        cells, goals = max(floor.free.size for floor in floors), config.per_scene
        if 4 * len(floors) * goals * cells > _MOST_BYTES:
            raise ConfigError(
                f"the ways to {goals} goals in each of {len(floors)} scenes take "
                f"{4 * len(floors) * goals * cells / 2**30:.1f} GiB; lower env.goal.per_scene or raise "
                "env.reward.view_cell"
            )
        ways = torch.full((len(floors), goals, cells), math.inf)
        place = torch.zeros(len(floors), goals, 3)
        order = torch.zeros(len(floors), spawns.shape[1], goals, dtype=torch.int64)
        allowed = torch.ones(len(floors), spawns.shape[1], dtype=torch.int64)
        for s, floor in enumerate(floors):
            free = np.argwhere(floor.free)
            draws = uniform(seed, Purpose.GOAL, torch.full((goals,), s), 0, torch.arange(goals)).numpy()
            picks = floor.corner + (free[(draws * len(free)).astype(np.int64)] + 0.5) * floor.cell
            place[s] = torch.from_numpy(picks)
            here = spawns[s, : int(count[s])].cpu().numpy()
            lengths = np.full((len(here), goals), np.inf)
            for g in range(goals):
                field = way_to(floor, picks[g])
                ways[s, g, : field.size] = torch.from_numpy(field.reshape(-1))
                lengths[:, g] = way_lengths(floor, field, here)
            for p, row in enumerate(lengths):
                fit = _fitting(row, config.min_distance)
                order[s, p, : len(fit)], allowed[s, p] = torch.from_numpy(fit), len(fit)
        # Those of the scenes, one after the other, and behind them the rows' own, see `choose`.
        self._ways, self._place = ways.flatten(0, 1).to(device), place.flatten(0, 1).to(device)
        self._floors, self._drawn = floors, len(floors) * goals
        self._own: dict[int, int] = {}
        self._order, self._allowed = order.to(device), allowed.to(device)
        self._low = torch.from_numpy(np.stack([floor.corner for floor in floors])).to(device)
        self._shape = torch.tensor([floor.free.shape for floor in floors], device=device)
        self._cell, self._corners = floors[0].cell, _CORNERS.to(device)
        self.index = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self.way = torch.zeros(len(rows), device=device)

    def of(self, scene: torch.Tensor) -> torch.Tensor:
        """Return the (B, 3) goal positions of the rows [m]."""
        return self._place[self._entry(scene)]

    def at(self, row: int, scene: torch.Tensor) -> torch.Tensor:
        """Return the (3,) goal position of one row [m]; `scene` (B,) is that of all rows."""
        return self._place[scene[row] * self.config.per_scene + self.index[row]]

    def known(self, index: torch.Tensor, scene: torch.Tensor) -> bool:
        """Validate goal indices (B,) for the scenes (B,) of the rows."""
        entry = scene * self.config.per_scene + index
        own = (entry >= self._drawn) & (entry < len(self._ways))
        return bool(((index >= 0) & ((index < self.config.per_scene) | own)).all())

    def choose(self, rows: torch.Tensor, scene: torch.Tensor, place: torch.Tensor, position: torch.Tensor) -> None:
        """Set custom goals for some rows until their episodes end.

        Args:
            rows: (N,) int64.
            scene: (N,) int64 of their episodes.
            place: (N, 3) the goals [m].
            position: (N, 3) where the episodes begin [m].

        Raises:
            ConfigError: The ways would take too much memory.
            SceneError: A goal does not lie in the reachable space.
        """
        own = dict(self._own)
        for row in rows.tolist():
            own.setdefault(row, self._drawn + len(own))
        more = self._drawn + len(own) - len(self._ways)
        if 4 * (len(self._ways) + more) * self._ways.shape[1] > _MOST_BYTES:
            raise ConfigError(f"the ways to {len(own)} goals of the rows' own take too much memory; choose fewer")
        found = [way_to(self._floors[s], goal) for s, goal in zip(scene.tolist(), place.cpu().numpy())]
        # New tables: copies of these goals go on with theirs.
        ways = torch.nn.functional.pad(self._ways, (0, 0, 0, more), value=math.inf)
        places = torch.nn.functional.pad(self._place, (0, 0, 0, more))
        for row, field, goal in zip(rows.tolist(), found, place):
            ways[own[row]] = math.inf
            ways[own[row], : field.size] = torch.from_numpy(field.reshape(-1)).to(ways.device)
            places[own[row]] = goal
        self._own, self._ways, self._place = own, ways, places
        entries = torch.tensor([own[row] for row in rows.tolist()], device=rows.device)
        self.index[rows] = entries - scene * self.config.per_scene
        self._measure(rows, scene, position)

    def own(self) -> tuple[dict[int, int], torch.Tensor, torch.Tensor]:
        """Return the custom goals and their distance fields as state for `take_own` of an identically built object."""
        return self._own, self._ways[self._drawn :].clone(), self._place[self._drawn :].clone()

    def take_own(self, own: tuple[dict[int, int], torch.Tensor, torch.Tensor]) -> None:
        """Restore custom goals from `own`."""
        self._own, ways, place = own
        self._ways, self._place = torch.cat([self._ways, ways]), torch.cat([self._place, place])

    def begin_at(
        self, rows: torch.Tensor, scene: torch.Tensor, position: torch.Tensor, episode: torch.Tensor, seed: int
    ) -> None:
        """Draw goals for some rows whose episodes begin elsewhere than at a spawn, at least `min_distance` away.

        Args:
            rows: (N,) int64.
            scene: (N,) int64 of the episodes.
            position: (N, 3) where they begin [m].
            episode: (N,) int64 their numbers.
            seed: Seed of the draws.
        """
        part, lengths = self.subset(rows), []
        for goal in range(self.config.per_scene):
            part.index.fill_(goal)
            lengths.append(part._length(position, scene, torch.full_like(part.way, math.inf)))
        draws = uniform(seed, Purpose.GOAL, part._rows, episode, 1)
        for i, row in enumerate(torch.stack(lengths, dim=1).cpu().numpy()):
            fit = _fitting(row, self.config.min_distance)
            self.index[rows[i]] = int(fit[int(float(draws[i]) * len(fit))])
        self._measure(rows, scene, position)

    def _entry(self, scene: torch.Tensor) -> torch.Tensor:
        """Return the (B,) table indices of the rows' goals."""
        return scene * self.config.per_scene + self.index

    def _measure(self, rows: torch.Tensor, scene: torch.Tensor, position: torch.Tensor) -> None:
        part = self.subset(rows)
        self.way[rows] = part._length(position, scene, part.way)

    def begin(
        self,
        begins: torch.Tensor,
        scene: torch.Tensor,
        slot: torch.Tensor,
        episode: torch.Tensor,
        position: torch.Tensor,
        seed: int,
    ) -> None:
        """Draw new goals for the rows that begin an episode.

        Args:
            begins: (B,) bool.
            scene: (B,) int64 of the new episode.
            slot: (B,) int64 entry of its spawn pool.
            episode: (B,) int64 its number.
            position: (B, 3) where it begins [m].
            seed: Seed of the draws.
        """
        draw = uniform(seed, Purpose.GOAL, self._rows, episode, 1)
        pick = (draw * self._allowed[scene, slot]).to(torch.int64)
        index = self._order[scene, slot].gather(1, pick[:, None])[:, 0]
        self.index.copy_(torch.where(begins, index, self.index))
        self.way.copy_(torch.where(begins, self._length(position, scene, self.way), self.way))

    def follow(
        self, position: torch.Tensor, yaw: torch.Tensor, speed: torch.Tensor, scene: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Update the remaining path lengths after a step; return success, reward terms and goal observations.

        Args:
            position: (B, 3) after it [m].
            yaw: (B,) [rad].
            speed: (B,) linear speed [m/s].
            scene: (B,) int64.

        Returns:
            Success (B,) bool, and the details of a step: "reward_terms", weighted, "success",
            "goal" (B, 4) as `relative_goal`, "way" (B,) that is left [m], "near" (B,) as `near`.
        """
        now, goal = self._length(position, scene, self.way), self.of(scene)
        success = reached(position, speed, goal, self.config)
        terms = {
            "goal_progress": self.config.progress_weight * (self.way - now),
            "goal_success": self.config.success_reward * success,
        }
        self.way.copy_(now)
        info = {"reward_terms": terms, "success": success, "goal": relative_goal(position, yaw, goal), "way": now}
        info["near"] = self.near(position, scene)
        return success, info

    def near(self, position: torch.Tensor, scene: torch.Tensor) -> torch.Tensor:
        """Return a (B,) bool mask: is the drone at (B, 3) near enough to its goal to stop there?"""
        return _near(position, self.of(scene), self.config)

    def subset(self, rows: torch.Tensor) -> Goals:
        """Return the goals of a subset of the rows (N,): the same distance fields, copies of what changes."""
        part = copy.copy(self)
        part._rows, part.index, part.way = self._rows[rows], self.index[rows], self.way[rows]
        return part

    def _length(self, position: torch.Tensor, scene: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
        """Interpolate the (B,) geodesic distance to each row's goal; `otherwise` where no voxel around is reachable."""
        place = (position.to(torch.float64) - self._low[scene]) / self._cell - 0.5
        flat, weight = _corners_around(place, self._shape[scene], self._corners)
        length, known = _interpolated(self._ways[self._entry(scene)[:, None], flat], weight)
        return torch.where(known, length.to(torch.float32), otherwise)
