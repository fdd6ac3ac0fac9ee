"""Spawn pools: candidate start poses of a scene, and whether the scene is fit for flight."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from navi_core.config import SpawnConfig
from navi_core.errors import SceneError
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.rewards import ahead_sector, band_end, structure_fractions, structure_of
from navi_core.world.sensor.spherical import SphericalSensor

SPAWN_CELL = 0.2
"""Voxel edge of the connectivity check [m]."""


@dataclass(frozen=True)
class Verdict:
    """Fitness of a scene for flight.

    Attributes:
        verdict: PASS (at least 4 viable candidates and best starvation below .5), FAIL (none viable, or
            best starvation at or above the rejection limit), else MARGINAL.
        viable: Number of viable candidates.
        best_starvation: Least share of missing rays over the free candidates.
        candidates: Candidates that lie in free, connected space.
        reason: Why it is FAIL, in words; empty otherwise.
    """

    verdict: Literal["PASS", "MARGINAL", "FAIL"]
    viable: int
    best_starvation: float
    candidates: int
    reason: str = ""


@dataclass(frozen=True)
class SpawnPool:
    """Viable spawn poses of one scene, best first.

    Attributes:
        position: (P, 3) [m].
        yaw: (P,) [rad], toward structure.
        score: (P,).
        verdict: Of the scene.
    """

    position: torch.Tensor
    yaw: torch.Tensor
    score: torch.Tensor
    verdict: Verdict


def spawn_pool(
    field: Field, scene_index: int, config: SpawnConfig, clearance: float = 0.2, *, floor: FloorMap | None = None
) -> SpawnPool:
    """Probe the candidate grid of a scene.

    A candidate must lie in the scene's largest connected free space with `clearance` [m]; it is
    viable if fewer than `max_starvation` of its probe rays miss. Score = 3·band + 2·forward −
    starvation − 1.5·near. The yaw faces the azimuth sector that holds most structure.

    Args:
        field: Geometry.
        scene_index: Scene.
        config: Grid, inset, probe, rejection limit.
        clearance: Distance to the surface that a spawn keeps [m].
        floor: Reachable space at this clearance, where it is known.
    """
    if floor is None:
        floor = FloorMap(field, scene_index, SPAWN_CELL, clearance)
    low, high = (torch.from_numpy(b).to(torch.float64) for b in field.bounds(scene_index))
    margin = (high - low) * config.inset
    axes = [torch.linspace(float(a), float(b), n) for a, b, n in zip(low + margin, high - margin, config.grid)]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3).to(torch.float32)
    connected = floor.contains(grid)
    grid = grid[connected].to(field.device)
    scene = torch.full((len(grid),), scene_index, dtype=torch.int64, device=field.device)
    free = ~field.within(grid, scene, clearance)
    position, scene = grid[free], scene[free]
    azimuths, elevations = config.probe
    if not len(position):
        return SpawnPool(position, torch.zeros(0), torch.zeros(0), Verdict("FAIL", 0, 1.0, 0))
    sensor = SphericalSensor(field, azimuths, elevations, max_distance=100.0)
    hits = sensor.cast(position, torch.zeros_like(position[:, 0]), scene)
    band = torch.full_like(position[:, 0], band_end(field.volume(scene_index)))
    seen = structure_fractions(hits, azimuths, band)
    by_azimuth = structure_of(hits, band).to(torch.float32).view(-1, azimuths, elevations).sum(dim=2)
    sector = ahead_sector(azimuths)
    # Structure in the bins that would lie ahead after a turn to each azimuth: as many on each side of the seam.
    turns = range(-sector + 1, sector + 1)
    window = torch.stack([torch.roll(by_azimuth, turn, dims=1) for turn in turns]).sum(dim=0)
    best = window.argmax(dim=1)
    yaw = torch.remainder(-best * (2.0 * math.pi / azimuths), 2.0 * math.pi).to(torch.float32)
    forward = window.gather(1, best[:, None])[:, 0] / (2 * sector * elevations)
    score = 3.0 * seen.band + 2.0 * forward - seen.starvation - 1.5 * seen.near
    viable = seen.starvation < config.max_starvation
    least = float(seen.starvation.min())
    count = int(viable.sum())
    if count == 0 or least >= config.max_starvation:
        word: Literal["PASS", "MARGINAL", "FAIL"] = "FAIL"
    else:
        word = "PASS" if count >= 4 and least < 0.5 else "MARGINAL"
    order = torch.argsort(score[viable], descending=True, stable=True)
    return SpawnPool(
        position[viable][order],
        yaw[viable][order],
        score[viable][order],
        Verdict(word, count, least, len(position)),
    )


def scattered_spawns(
    field: Field, scene_index: int, config: SpawnConfig, clearance: float = 0.2, *, floor: FloorMap | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw poses anywhere in the reachable space of a scene, heading anywhere; the same ones every time.

    Poses whose share of missing rays reaches `max_starvation` are left out; of twice as many draws the first
    `config.scattered` others are taken.

    Args:
        field: Geometry.
        scene_index: Scene.
        config: How many, probe, rejection limit.
        clearance: Distance to the surface that a spawn keeps [m].
        floor: Reachable space at this clearance, where it is known.

    Returns:
        position (n, 3) [m] and yaw (n,) [rad], n ≤ `config.scattered`.
    """
    if floor is None:
        floor = FloorMap(field, scene_index, SPAWN_CELL, clearance)
    voxels, draws = np.argwhere(floor.free), torch.arange(2 * config.scattered)
    share = uniform(0, Purpose.SCATTER, draws, 0).numpy()
    picks = voxels[(share * len(voxels)).astype(np.int64)]
    position = torch.from_numpy(floor.corner + (picks + 0.5) * floor.cell).to(torch.float32).to(field.device)
    yaw = 2.0 * math.pi * uniform(0, Purpose.SCATTER, draws, 1).to(torch.float32)
    scene = torch.full((len(position),), scene_index, dtype=torch.int64, device=field.device)
    sensor = SphericalSensor(field, *config.probe, max_distance=100.0)
    hits = sensor.cast(position, torch.zeros_like(position[:, 0]), scene)
    starvation = 1.0 - hits.valid.sum(dim=1) / hits.valid.shape[1]
    kept = torch.nonzero((starvation < config.max_starvation) & ~field.within(position, scene, clearance)).flatten()
    kept = kept[: config.scattered]
    return position[kept], yaw.to(field.device)[kept]


def scene_verdict(field: Field, scene_index: int, config: SpawnConfig | None = None) -> Verdict:
    """Return the spawn-quality verdict of a scene; one that no drone fits into, or that is too large, is FAIL."""
    try:
        verdict = spawn_pool(field, scene_index, config or SpawnConfig()).verdict
    except SceneError as error:
        return Verdict("FAIL", 0, 1.0, 0, str(error))
    if verdict.verdict != "FAIL":
        return verdict
    seen = f"where most is seen {verdict.best_starvation:.0%} of the rays meet nothing"
    return replace(verdict, reason=f"no viable spawn among {verdict.candidates} free places; {seen}")
