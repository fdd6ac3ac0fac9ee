"""Rerun recordings of the median and the worst episode of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from navi_core.errors import EvaluationError
from navi_core.evaluate.result import EvalResult
from navi_core.record.rerun import EpisodeTrace, write_rrd
from navi_core.world.field import Field
from navi_core.world.sensor.spherical import SphericalSensor

if TYPE_CHECKING:
    from navi_core.scenes import Scene

_BINS = (128, 24)
"""Azimuth and elevation bins of the panoramas, independent of the subject's resolution."""
_BLOCK = 64
"""Panoramas cast at once."""


def representative_episodes(result: EvalResult, metric: str = "c_vis_auc") -> dict[str, int]:
    """Return the indices of the median (the lower of two) and of the worst episode.

    Args:
        result: An evaluation with paths; files of `navi evaluate --out` have none.
        metric: Metric to rank by; more is better.

    Raises:
        EvaluationError: The result holds no paths.
    """
    if not result.trajectories:
        raise EvaluationError("the result keeps no paths; fly it again: files of `navi evaluate --out` have none")
    values = [value for scene in result.by_scene(metric).values() for value in scene]
    order = sorted(range(len(values)), key=lambda index: values[index])
    return {"median": order[(len(order) - 1) // 2], "worst": order[0]}


def episode_trace(result: EvalResult, index: int, field: Field, scene_index: int) -> EpisodeTrace:
    """Return the panoramas along an episode, with its curves.

    Args:
        result: The evaluation.
        index: Index of the episode.
        field: Field that holds the scene.
        scene_index: Index of the scene in the field.
    """
    row, positions, yaws = result.episodes[index], result.trajectories[index], result.yaws[index]
    sensor = SphericalSensor(field, *_BINS, max_distance=100.0)
    position, yaw = torch.from_numpy(positions), torch.from_numpy(yaws)
    scene = torch.full((len(position),), scene_index, dtype=torch.int64)
    parts = []
    for first in range(0, len(position), _BLOCK):
        block = slice(first, first + _BLOCK)
        hits = sensor.cast(position[block], yaw[block], scene[block])
        parts.append((hits.depth.numpy(), hits.semantic.numpy().astype(np.uint16), hits.valid.numpy()))
    depth, semantic, valid = (np.concatenate(arrays).reshape(-1, *_BINS) for arrays in zip(*parts, strict=True))
    seconds = result.config.dynamics.decision_seconds
    moved = np.linalg.norm(np.diff(positions, axis=0, prepend=positions[:1]), axis=1)
    return EpisodeTrace(
        name=f"{result.subject}, {row['scene']}, start {row['start']}",
        positions=positions,
        yaws=yaws,
        depth=depth,
        semantic=semantic,
        valid=valid,
        directions=sensor.directions.numpy(),
        seconds=np.arange(len(positions)) * seconds,
        scalars={
            "clearance_m": field.distance(position, scene).numpy().astype(np.float64),
            "speed_m_per_s": (moved / seconds).astype(np.float64),
            "path_m": np.cumsum(moved, dtype=np.float64),
        },
    )


def write_traces(folder: Path, result: EvalResult, scenes: Sequence[Scene]) -> list[Path]:
    """Write `<subject>-median.rrd` and `<subject>-worst.rrd`.

    Args:
        folder: Folder of the files.
        result: The evaluation.
        scenes: The scenes it was flown in.

    Returns:
        The files.

    Raises:
        EvaluationError: The result keeps no paths.
        RecordError: The extra `rerun` is not installed, or a file cannot be written.
    """
    field, names = Field(scenes), [scene.name for scene in scenes]
    written = []
    for word, index in representative_episodes(result).items():
        path = folder / f"{result.subject.replace('/', '_')}-{word}.rrd"
        write_rrd(path, episode_trace(result, index, field, names.index(str(result.episodes[index]["scene"]))))
        written.append(path)
    return written
