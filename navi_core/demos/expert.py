"""Recording a teacher: a scripted pilot flies, or answers a pupil that does; every observation is kept with its answer.

Each episode is a file that exists whole or not at all, and depends on the settings, the scene and its own number alone;
so a recording that was killed goes on where it stopped and ends in the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config import ExpertConfig, config_hash, parse_config
from navi_core.demos.dagger import Cockpit, Pupil
from navi_core.demos.dataset import index_folder
from navi_core.demos.demonstration import Demonstration, save_demonstration
from navi_core.errors import ConfigError, DemoError
from navi_core.pilots import Pose, build_pilot
from navi_core.pilots.draws import draw_normal, draw_uniform
from navi_core.record import write_durably
from navi_core.scenes.naming import own_stem
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.dynamics import Dynamics
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.sensor.spherical import SphericalSensor

if TYPE_CHECKING:
    from navi_core.scenes import Scene

__all__ = ["RecordedScene", "record_expert"]

_SETTINGS = "recording.json"
_BLOCK = 16
"""Episodes of a scene that are flown together."""
_CELL = 0.2
"""Cell of the map that starts are drawn from [m]."""


@dataclass(frozen=True)
class RecordedScene:
    """What was recorded in one scene."""

    scene: str
    """Its name."""
    recorded: int
    """Episodes flown now."""
    kept: int
    """Episodes that an earlier start had recorded."""
    collisions_per_minute: float
    """Of the episodes flown now; NaN without one."""


def record_expert(
    folder: Path,
    scenes: Sequence[Scene],
    config: ExpertConfig,
    *,
    pupil: Pupil | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[RecordedScene]:
    """Record flights of a pilot, one `.npz` per episode, and index them.

    Given again, it goes on where it stopped; files that are whole are kept.

    Args:
        folder: Where to.
        scenes: Where to fly; names must differ.
        config: Who teaches, how often, how long.
        pupil: Who flies while the teacher answers; by default the teacher. `config.pupil` is its hash.
        progress: Called as progress(scene, decisions done, decisions in all).
        stop: Asked before every decision; the episodes in flight are then dropped.

    Returns:
        One row per scene that was begun.

    Raises:
        ConfigError: The folder holds a recording with other settings, an unknown pilot, or a pupil that sees otherwise.
        DemoError: Something cannot be written, or a file in the folder is broken.
        SceneError: A scene has no free space.
    """
    names = [scene.name for scene in scenes]
    if not names or len(set(names)) != len(names):
        raise ConfigError("record_expert needs at least one scene, and scenes of different names")
    build_pilot(config.pilot, seed=config.seed)
    if pupil is not None:
        pupil.require_fit(config)
    elif config.pupil is not None:
        raise ConfigError(f"the settings name the pupil {config.pupil[:12]}, and none is there to fly")
    _claim(folder, config)
    field = Field(scenes, vocabulary=None if pupil is None else pupil.vocabulary)
    total = len(scenes) * config.episodes * config.steps
    done = 0
    rows: list[RecordedScene] = []
    for index, scene in enumerate(scenes):
        missing = [n for n in range(config.episodes) if not (folder / _file(scene.name, n)).exists()]
        kept, hits = config.episodes - len(missing), 0
        done += kept * config.steps
        tick = None if progress is None else _tick(progress, scene.name, total)
        if tick is not None:
            tick(done)
        for first in range(0, len(missing), _BLOCK):
            block = missing[first : first + _BLOCK]
            flown = _fly(field, index, block, config, pupil, stop, tick, done)
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


def _tick(progress: Callable[[str, int, int], None], scene: str, total: int) -> Callable[[int], None]:
    return lambda done: progress(scene, done, total)


def _claim(folder: Path, config: ExpertConfig) -> None:
    """Bind a folder to settings: decisions of two teachers in one dataset would contradict each other."""
    file = folder / _SETTINGS
    # More episodes may be added later; each is the same whatever their number.
    same = config.model_copy(update={"episodes": 1})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            record = {"config_hash": config_hash(same), "config": config.model_dump(mode="json")}
            write_durably(file, (json.dumps(record, indent=1) + "\n").encode())
            return
        # Read as settings, not as a hash: one that was added since has its default.
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
    # The name comes from the scene's file, which may be anybody's: as it stands it could lead out of the folder.
    return f"{own_stem(scene)}-{number:05d}.npz"


def _keys(scene: Scene, block: list[int]) -> Tensor:
    content = scene.content_hash()
    digests = [hashlib.sha256(f"demo/{content}/{number}".encode()).digest() for number in block]
    return torch.tensor([int.from_bytes(digest[:8], "little") >> 1 for digest in digests])


def _starts(field: Field, index: int, keys: Tensor, config: ExpertConfig) -> tuple[Tensor, Tensor]:
    """Draw positions (B, 3) among the reachable voxels, and yaws (B,)."""
    floor = FloorMap(field, index, _CELL, max(config.clearance, config.dynamics.radius + 0.05))
    cells = np.argwhere(floor.free)
    low = np.asarray(field.bounds(index)[0], np.float64)
    draws = [uniform(config.seed, Purpose.START, keys, 1, step).numpy() for step in range(2)]
    picks = cells[(draws[0] * len(cells)).astype(np.int64)]
    position = torch.from_numpy((low + (picks + 0.5) * _CELL).astype(np.float32))
    return position, torch.from_numpy((draws[1] * 2.0 * math.pi).astype(np.float32))


@torch.no_grad()
def _fly(
    field: Field,
    index: int,
    block: list[int],
    config: ExpertConfig,
    pupil: Pupil | None,
    stop: Callable[[], bool] | None,
    tick: Callable[[int], None] | None,
    before: int,
) -> list[tuple[int, Demonstration, int]] | None:
    """Fly one block of episodes of a scene; None if it was stopped."""
    scene, rows = field.scenes[index], len(block)
    keys = _keys(scene, block)
    position, yaw = _starts(field, index, keys, config)
    scene_index = torch.full((rows,), index, dtype=torch.int64)
    velocity = torch.zeros(rows, 4)
    sensor = SphericalSensor(field, config.azimuth_bins, config.elevation_bins, config.max_distance)
    dynamics = Dynamics(field, config.dynamics)
    pilot = build_pilot(config.pilot, seed=config.seed, max_distance=config.max_distance, dynamics=config.dynamics)
    pilot.attach(field)
    pilot.reset(torch.ones(rows, dtype=torch.bool), keys)
    cockpit = None if pupil is None else Cockpit(pupil, keys, field, _BLOCK)
    observations = np.empty((rows, config.steps, 3, config.azimuth_bins, config.elevation_bins), np.float32)
    actions = np.empty((rows, config.steps, 4), np.float32)
    flown = np.empty_like(actions)
    collisions = torch.zeros(rows, dtype=torch.int64)
    episode = torch.zeros(rows, dtype=torch.int64)
    disturbed = config.noise > 0 or cockpit is not None
    for t in range(config.steps):
        if stop is not None and stop():
            return None
        hits = sensor.cast(position, yaw, scene_index)
        obs = sensor.observation(hits)
        pose = Pose(position, yaw, scene_index)
        answer = pilot.act(obs, pose=pose if pilot.privileged else None).clamp(-1.0, 1.0)
        observations[:, t], actions[:, t] = obs.numpy(), answer.numpy()
        held = torch.full_like(episode, t // config.noise_hold)
        if cockpit is not None:
            # A lane of its own: the first four are the disturbance, which must not know who flies.
            dice = draw_uniform(config.seed, keys, episode, held, lanes=range(4, 5), purpose=Purpose.ACTION)
            answer = torch.where(dice < config.teacher_share, answer, cockpit.act(obs, pose))
        if config.noise > 0:
            answer = (answer + config.noise * draw_normal(config.seed, keys, episode, held, axes=4)).clamp(-1.0, 1.0)
        if disturbed:
            pilot.executed(answer)
        flown[:, t] = answer.clamp(-1.0, 1.0).numpy()
        front = dynamics.front_distance(hits.depth, hits.valid, config.azimuth_bins)
        motion = dynamics.step(position, yaw, velocity, answer, front, scene_index)
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        collisions += motion.collided
        if tick is not None:
            tick(before + rows * (t + 1))
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
