"""Recorder of expert demonstrations: a scripted pilot (teacher) flies, or labels a student's flight (DAgger).

Each episode is one file, written atomically. It depends on the settings, the scene and its number alone, so a killed
recording resumes where it stopped, with bit-identical results.

DAgger (Ross, Gordon and Bagnell 2011): the student's policy flies, the teacher labels every decision. A clone drifts
into states that its teacher never visited and has not learned to leave. Labelled flights of the student cover these
states.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from navi_core.config import ExpertConfig, config_hash, parse_config
from navi_core.demos.dataset import index_folder
from navi_core.demos.demonstration import Demonstration, save_demonstration
from navi_core.errors import ConfigError, DemoError
from navi_core.pilots import Pose, build_pilot
from navi_core.pilots.pilot import draw_normal, draw_uniform
from navi_core.record import write_durably
from navi_core.scenes import Scene
from navi_core.scenes.naming import own_stem
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.dynamics import Dynamics
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.occupancy_memory import pose_rows
from navi_core.world.sensor.faults import SensorFaults
from navi_core.world.sensor.panorama import SphericalSensor


class Flyer(Protocol):
    """Protocol (interface) of a policy that flies a batch of drones as a DAgger student; see the evaluation's flyer."""

    azimuth_bins: int
    """Az of its observations."""
    elevation_bins: int
    """El of its observations."""
    max_distance: float
    """Range of its sensor [m]."""

    def begin(self, keys: Tensor, field: Field) -> None:
        """Reset for new episodes in all rows (B,)."""

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Compute actions (B, 4) for observations (B, 3, Az, El)."""


@dataclass(frozen=True)
class Student:
    """DAgger student: a policy with the identity and semantic vocabulary of its weights."""

    flyer: Flyer
    """Policy that flies."""
    weights: str
    """Hash of the weights; a recording is bound to it."""
    vocabulary: Mapping[str, int] | None = None
    """Semantic id by name, as the weights learned them."""

    def require_fit(self, config: ExpertConfig) -> None:
        """Refuse recording settings whose sensor differs from the one that the student was trained with.

        Raises:
            ConfigError: The resolution or range differs, or the settings name other weights.
        """
        for name, here, there in (
            ("azimuth_bins", config.azimuth_bins, self.flyer.azimuth_bins),
            ("elevation_bins", config.elevation_bins, self.flyer.elevation_bins),
            ("max_distance", config.max_distance, self.flyer.max_distance),
            ("pupil", config.pupil, self.weights),
        ):
            if here != there:
                raise ConfigError(f"{name} of the recording is {here}, that of the student {there}; set it alike")


class FixedBatchFlyer:
    """Wrapper that pads a student's batch to a fixed size, so that an episode does not depend on the other rows.

    Args:
        student: Policy that flies.
        keys: (B,) random keys of the rows, at most `block` rows.
        field: Scenes to fly in.
        block: Rows of a batch.
    """

    def __init__(self, student: Student, keys: Tensor, field: Field, block: int) -> None:
        self._flyer, self._rows = student.flyer, len(keys)
        # The first row fills the batch up.
        self._padded = torch.cat((torch.arange(len(keys)), torch.zeros(block - len(keys), dtype=torch.int64)))
        self._flyer.begin(keys[self._padded], field)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Return the student's actions (B, 4), clamped to [−1, 1]."""
        rows = self._padded
        estimate = None if pose.estimate is None else pose.estimate[rows]
        padded = Pose(pose.position[rows], pose.yaw[rows], pose.scene_index[rows], estimate=estimate)
        return self._flyer.act(obs[rows], padded)[: self._rows].clamp(-1.0, 1.0)


_SETTINGS = "recording.json"
_BLOCK = 16
"""Episodes of a scene that are flown together."""
_CELL = 0.2
"""Cell of the map that starts are drawn from [m]."""


@dataclass(frozen=True)
class RecordedScene:
    """Recording statistics of one scene."""

    scene: str
    """Its name."""
    recorded: int
    """Episodes flown by this call."""
    kept: int
    """Episodes recorded by an earlier call."""
    collisions_per_minute: float
    """Mean over the episodes flown by this call; NaN without one."""


# Half of its lines document the arguments.
def record_expert(
    folder: Path,
    scenes: Sequence[Scene],
    config: ExpertConfig,
    *,
    student: Student | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[RecordedScene]:
    """Record expert demonstrations of a scripted pilot, one `.npz` per episode, and index them.

    A repeated call resumes where the last one stopped; complete files are kept.

    Args:
        folder: Folder of the recordings.
        scenes: Scenes to fly in; names must differ.
        config: Pilot, sensor, number and length of the episodes.
        student: Policy that flies while the pilot labels; by default the pilot flies. `config.pupil` is its hash.
        progress: Called as progress(scene, decisions done, decisions in all).
        stop: Polled before every decision; once true, the episodes in flight are dropped.

    Returns:
        One row per scene that was begun.

    Raises:
        ConfigError: The folder holds a recording with other settings, the pilot is unknown, or the student's sensor
            differs.
        DemoError: Something cannot be written, or a file in the folder is broken.
        SceneError: A scene has no free space.
    """
    names = [scene.name for scene in scenes]
    if not names or len(set(names)) != len(names):
        raise ConfigError("record_expert needs at least one scene, and scenes of different names")
    build_pilot(config.pilot, seed=config.seed)
    if student is not None:
        student.require_fit(config)
    elif config.pupil is not None:
        raise ConfigError(f"the settings name the student {config.pupil[:12]}, but none was given")
    _bind_settings(folder, config)
    field = Field(scenes, vocabulary=None if student is None else student.vocabulary)
    total = len(scenes) * config.episodes * config.steps
    done = 0
    rows: list[RecordedScene] = []
    for index, scene in enumerate(scenes):
        missing = [n for n in range(config.episodes) if not (folder / _file(scene.name, n)).exists()]
        kept, hits = config.episodes - len(missing), 0
        done += kept * config.steps
        if progress is not None:
            progress(scene.name, done, total)
        for first in range(0, len(missing), _BLOCK):
            block = missing[first : first + _BLOCK]
            flown = _fly(field, index, block, config, student, stop, progress, done)
            if flown is None:
                return rows
            for number, demo, collisions in flown:
                save_demonstration(folder / _file(scene.name, number), demo)
                hits += collisions
            done += len(block) * config.steps
        minutes = len(missing) * config.steps * config.dynamics.decision_seconds / 60.0
        rows.append(RecordedScene(scene.name, len(missing), kept, hits / minutes if missing else math.nan))
    wanted = [_file(scene.name, n) for scene in scenes for n in range(config.episodes)]
    others = sorted(path.name for path in folder.glob("*.npz") if path.name not in set(wanted))
    index_folder(folder, [*wanted, *others])
    return rows


def _bind_settings(folder: Path, config: ExpertConfig) -> None:
    """Bind a dataset folder to its recording settings, so that labels of two teachers are never mixed."""
    file = folder / _SETTINGS
    # The number of episodes may grow later.
    same = config.model_copy(update={"episodes": 1})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            record = {"config_hash": config_hash(same), "config": config.model_dump(mode="json")}
            write_durably(file, (json.dumps(record, indent=1) + "\n").encode())
            return
        # Compared as settings, not by hash: a setting that is new since then has its default.
        before = parse_config(ExpertConfig, json.loads(file.read_text())["config"])
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise DemoError(f"cannot be used ({error}); choose another --out", path=file) from None
    now, then = (c.model_dump(mode="json") for c in (same, before.model_copy(update={"episodes": 1})))
    if now != then:
        changed = sorted(key for key in now if now[key] != then[key])
        raise ConfigError(
            f"{folder} holds a recording with another {', '.join(changed)}; give the same settings "
            "to go on with it, or choose another --out"
        )


def _file(scene: str, number: int) -> str:
    # The scene's name is untrusted: unescaped it could lead out of the folder.
    return f"{own_stem(scene)}-{number:05d}.npz"


def _keys(scene: Scene, block: list[int]) -> Tensor:
    content = scene.content_hash()
    digests = [hashlib.sha256(f"demo/{content}/{number}".encode()).digest() for number in block]
    return torch.tensor([int.from_bytes(digest[:8], "little") >> 1 for digest in digests])


def _starts(field: Field, index: int, keys: Tensor, config: ExpertConfig) -> tuple[Tensor, Tensor]:
    """Sample start poses: positions (B, 3) among the reachable voxels, and yaws (B,)."""
    floor = FloorMap(
        field, index, _CELL, max(config.clearance, config.dynamics.radius + 0.05), config.dynamics.height_limit
    )
    cells = np.argwhere(floor.free)
    low = np.asarray(field.bounds(index)[0], np.float64)
    draws = [uniform(config.seed, Purpose.START, keys, 1, step).numpy() for step in range(2)]
    picks = cells[(draws[0] * len(cells)).astype(np.int64)]
    position = torch.from_numpy((low + (picks + 0.5) * _CELL).astype(np.float32))
    return position, torch.from_numpy((draws[1] * 2.0 * math.pi).astype(np.float32))


# One loop over decisions, whose state is local.
@torch.no_grad()
def _fly(
    field: Field,
    index: int,
    block: list[int],
    config: ExpertConfig,
    student: Student | None,
    stop: Callable[[], bool] | None,
    progress: Callable[[str, int, int], None] | None,
    before: int,
) -> list[tuple[int, Demonstration, int]] | None:
    """Simulate and record a batch of episodes in one scene; return None if stopped."""
    scene, rows = field.scenes[index], len(block)
    keys = _keys(scene, block)
    position, yaw = _starts(field, index, keys, config)
    scene_index = torch.full((rows,), index, dtype=torch.int64)
    velocity = torch.zeros(rows, 4)
    sensor = SphericalSensor(field, config.azimuth_bins, config.elevation_bins, config.max_distance)
    dynamics = Dynamics(field, config.dynamics)
    faults = SensorFaults(config.sensor, config.seed, keys, config.max_distance)
    pilot = build_pilot(
        config.pilot, seed=config.seed, max_distance=config.max_distance, dynamics=config.dynamics, sensor=config.sensor
    )
    pilot.attach(field)
    pilot.reset(torch.ones(rows, dtype=torch.bool), keys)
    flyer = None if student is None else FixedBatchFlyer(student, keys, field, _BLOCK)
    observations = np.empty((rows, config.steps, 3, config.azimuth_bins, config.elevation_bins), np.float32)
    actions = np.empty((rows, config.steps, 4), np.float32)
    flown = np.empty_like(actions)
    collisions = torch.zeros(rows, dtype=torch.int64)
    episode = torch.zeros(rows, dtype=torch.int64)
    disturbed = config.noise > 0 or flyer is not None
    for t in range(config.steps):
        if stop is not None and stop():
            return None
        hits = sensor.cast(position, yaw, scene_index)
        obs = faults.apply(sensor.observation(hits), episode, torch.full_like(episode, t))
        # As in an evaluation: a limited sensor cannot correct a reckoned pose.
        estimate = pose_rows(position, yaw) if config.sensor.needs_odometry else None
        pose = Pose(position, yaw, scene_index, estimate=estimate)
        action = pilot.act_at(obs, pose).clamp(-1.0, 1.0)
        observations[:, t], actions[:, t] = obs.numpy(), action.numpy()
        held = torch.full_like(episode, t // config.noise_hold)
        if flyer is not None:
            # Lane 4: lanes 0 to 3 draw the noise, which must not depend on the student.
            draw = draw_uniform(config.seed, keys, episode, held, lanes=range(4, 5), purpose=Purpose.ACTION)
            action = torch.where(draw < config.teacher_share, action, flyer.act(obs, pose))
        if config.noise > 0:
            action = (action + config.noise * draw_normal(config.seed, keys, episode, held, axes=4)).clamp(-1.0, 1.0)
        if disturbed:
            pilot.executed(action)
        flown[:, t] = action.clamp(-1.0, 1.0).numpy()
        front = dynamics.front_distance(hits.depth, hits.valid, config.azimuth_bins)
        motion = dynamics.step(position, yaw, velocity, action, front, scene_index)
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        collisions += motion.collided
        if progress is not None:
            progress(scene.name, before + rows * (t + 1), len(field.scenes) * config.episodes * config.steps)
    starts = np.zeros(config.steps, bool)
    starts[0] = True
    date = datetime.now(UTC).isoformat(timespec="seconds")
    facts: dict[str, Any] = {
        "episode_starts": starts,
        "scene": scene.name,
        "decision_hz": config.dynamics.decision_hz,
        "limits": (*config.dynamics.max_speed, config.dynamics.max_yaw_rate),
        "recording_date": date,
        "max_distance": config.max_distance,
        "pilot": config.pilot,
        "scene_hash": scene.content_hash(),
        "source_hash": scene.source_hash,
        "vocabulary": dict(field.vocabulary),
    }
    return [
        (
            number,
            Demonstration(observations[row], actions[row], flown=flown[row] if disturbed else None, **facts),
            int(collisions[row]),
        )
        for row, number in enumerate(block)
    ]
