"""Evaluation course (fixed evaluation set-up): scenes, their reachable floor, and frozen starts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.metrics.coverage import FloorTruth
from navi_core.evaluate.metrics.surface import SurfaceTruth
from navi_core.scenes import Scene
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap

_CANDIDATES = 16
"""Candidates per start; the one farthest from the earlier starts is chosen (Mitchell 1991)."""

_EYE_HEIGHT = 1.0
"""Height of the starts above the lowest reachable voxel [m]; low rooms start at half height."""


@dataclass(frozen=True)
class Start:
    """Frozen start of an evaluation episode: scene, pose, random key, goal."""

    scene_index: int
    """Scene within the course's field."""
    scene: str
    """Name of the scene."""
    index: int
    """Number of the start within its scene."""
    position: tuple[float, float, float]
    """Start position [m]."""
    yaw: float
    """Start yaw [rad], in [0, 2π)."""
    key: int
    """Random key of the episode: a hash of scene and number."""
    goal: tuple[float, float, float] | None = None
    """Goal position of a point-goal episode [m]; None for exploration."""


@dataclass(frozen=True)
class Course:
    """Evaluation course: scenes, ground truth and frozen starts, prepared once for any number of subjects."""

    field: Field
    """Geometry of all scenes."""
    floors: tuple[FloorMap, ...]
    """Reachable floor of each scene."""
    scene_hashes: tuple[str, ...]
    """Content hash of each scene."""
    truths: tuple[FloorTruth, ...]
    """Floor that counts for coverage in each scene."""
    surfaces: tuple[SurfaceTruth, ...]
    """Visible surface of each scene; empty where the protocol does not measure it."""
    starts: tuple[Start, ...]
    """Frozen starts, ordered by scene and number."""
    config: EvalConfig
    """The protocol that the starts were made for."""

    def seen(self, trained_on: Collection[str]) -> list[str]:
        """Return the names of the training scenes in the course: content or source hash in `trained_on`."""
        pairs = zip(self.field.scenes, self.scene_hashes, strict=True)
        return [scene.name for scene, content in pairs if content in trained_on or scene.source_hash in trained_on]

    def with_vocabulary(self, vocabulary: Mapping[str, int] | None) -> Course:
        """Return the same course with the semantic ids of a policy's training; None keeps those of the course."""
        if vocabulary is None or dict(vocabulary) == self.field.vocabulary:
            return self
        return replace(self, field=Field(self.field.scenes, vocabulary=vocabulary))


def build_course(
    scenes: Sequence[Scene], config: EvalConfig, *, vocabulary: Mapping[str, int] | None = None, threads: int = 0
) -> Course:
    """Build an evaluation course: reachable floor, ground truth and frozen starts of each scene.

    Args:
        scenes: Scenes of different names.
        config: The protocol.
        vocabulary: Semantic id by name of the policy's training; None builds it from these scenes.
        threads: Threads of the ray kernels; 0 keeps the current setting.

    Raises:
        EvaluationError: No scene, two scenes of one name, or a scene without reachable floor.
        SceneError: A scene has no free space for the drone.
    """
    if not scenes:
        raise EvaluationError("no scene to evaluate on; name one with --scene")
    names = [scene.name for scene in scenes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise EvaluationError(
            f"two scenes are named {twice[0]!r}; results are identified by scene name. Leave one out, or rename its "
            "mesh and compile it again with: navi scenes compile MESH"
        )
    field = Field(scenes, threads=threads, vocabulary=vocabulary)
    clearance = config.dynamics.radius + config.clearance_margin
    lid = config.dynamics.height_limit
    floors = tuple(FloorMap(field, index, config.floor_cell, clearance, lid) for index in range(len(names)))
    truths = tuple(FloorTruth.of(floor, config.visit_cell) for floor in floors)
    surfaces = tuple(SurfaceTruth.of(field, i, floor) for i, floor in enumerate(floors)) if config.surface else ()
    starts = [
        start
        for index, floor in enumerate(floors)
        for start in frozen_starts(floor, field.scenes[index], index, count=config.starts, seed=config.seed)
    ]
    if config.task == "point_goal":
        starts = [with_goal(start, floors[start.scene_index], config) for start in starts]
    hashes = tuple(scene.content_hash() for scene in scenes)
    return Course(field, floors, hashes, truths, surfaces, tuple(starts), config)


def frozen_starts(floor: FloorMap, scene: Scene, scene_index: int, *, count: int, seed: int) -> list[Start]:
    """Sample reachable start poses that lie far apart (deterministic).

    They depend on the scene and the seed alone; a longer list begins with the shorter one.

    Args:
        floor: Reachable floor of the scene.
        scene: The scene.
        scene_index: Index of the scene in the field.
        count: Number of starts.
        seed: Seed of the protocol.
    """
    layer = _start_layer(floor)
    cells = np.argwhere(floor.free[:, layer, :])
    height = floor.height[0] + (layer - _lowest_layer(floor)) * floor.cell
    content = scene.content_hash()
    key = torch.tensor([_key(content)])
    chosen: list[np.ndarray] = []
    starts = []
    for index in range(count):
        draws = uniform(seed, Purpose.START, key.expand(_CANDIDATES + 1), index, torch.arange(_CANDIDATES + 1))
        picks = cells[(draws[:_CANDIDATES].numpy() * len(cells)).astype(np.int64)]
        points = floor.origin + (picks + 0.5) * floor.cell
        apart = np.array([min((float(np.hypot(*(p - c))) for c in chosen), default=0.0) for p in points])
        best = points[int(apart.argmax())]
        chosen.append(best)
        starts.append(
            Start(
                scene_index=scene_index,
                scene=scene.name,
                index=index,
                position=(float(best[0]), float(height), float(best[1])),
                yaw=float(draws[-1]) * 2.0 * math.pi,
                key=_key(content, index),
            )
        )
    return starts


def with_goal(start: Start, floor: FloorMap, config: EvalConfig) -> Start:
    """Add a frozen goal to a start: reachable, at the starts' height, at least the minimum distance away.

    The goal is the first of 16 drawn positions that lies far enough, or the farthest where none does.

    Args:
        start: The start.
        floor: Reachable floor of its scene.
        config: Seed and minimum distance.
    """
    layer = _start_layer(floor)
    cells = np.argwhere(floor.free[:, layer, :])
    draws = uniform(config.seed, Purpose.GOAL, torch.tensor([start.key]).expand(_CANDIDATES), 0,
                    torch.arange(_CANDIDATES)).numpy()  # fmt: skip
    points = floor.origin + (cells[(draws * len(cells)).astype(np.int64)] + 0.5) * floor.cell
    away = np.hypot(*(points - np.array([start.position[0], start.position[2]])).T)
    far = np.flatnonzero(away >= config.goal.min_distance)
    chosen = points[int(far[0]) if len(far) else int(away.argmax())]
    return replace(start, goal=(float(chosen[0]), start.position[1], float(chosen[1])))


def _lowest_layer(floor: FloorMap) -> int:
    return int(np.flatnonzero(floor.free.any(axis=(0, 2)))[0])


def _start_layer(floor: FloorMap) -> int:
    """Choose the voxel layer of the starts: eye height, or the freest layer where eye height is cluttered."""
    share = floor.free.sum(axis=(0, 2))
    # The layer at which most columns begin: pits and lift shafts are ignored.
    begins = int(np.bincount(floor.free.argmax(axis=1)[floor.free.any(axis=1)]).argmax())
    middle = (floor.height[1] - floor.height[0]) / 2.0 - (begins - _lowest_layer(floor)) * floor.cell / 2.0
    layer = begins + round(min(_EYE_HEIGHT, middle) / floor.cell)
    return layer if share[layer] >= 0.25 * share.max() else int(share.argmax())


def _key(*parts: str | int) -> int:
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
