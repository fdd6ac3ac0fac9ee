"""Episodes of a recorded session, as traces for the Rerun viewer."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

import numpy as np

from navi_core.config import REWARD_TERMS
from navi_core.errors import RecordError
from navi_core.record.rerun import EpisodeTrace
from navi_core.service.recordings.recording import Recording
from navi_core.service.viewing.digest import Digest
from navi_core.service.wire import DistanceMatrix
from navi_core.world import spherical_directions
from navi_core.world.sensor.spherical import denormalise_depth

MOST_FRAMES = 100_000
MOST_RAYS = 2**26
"""Largest numbers in one trace; each ray takes about twenty bytes."""


@dataclass
class RecordedEpisode:
    """The recorded part of one drone's episode."""

    drone: int
    """Its number."""
    episode: int
    """Number of the episode."""
    frames: int = 0
    """Observations."""
    began: float = math.nan
    """Time of the first, from the beginning of the recording [s]."""
    ended: float = math.nan
    """Of the last [s]."""
    entries: array[int] = field(default_factory=lambda: array("Q"), repr=False)
    """Numbers of its observations among the recording's messages."""


def list_episodes(recording: Recording) -> list[RecordedEpisode]:
    """Return the episodes of a recording, in the order in which they begin."""
    found: dict[tuple[int, int], RecordedEpisode] = {}
    shown: dict[tuple[int, int], int] = {}
    times = recording.frames.elapsed()
    for number, frame in enumerate(recording.frames):
        message = recording.readable_message(frame)
        if not isinstance(message, DistanceMatrix) or len(message.env_ids) != 1:
            continue
        key = (int(message.env_ids[0]), message.episode_id)
        # A heartbeat repeats an observation.
        if shown.get(key) == message.step_id:
            continue
        shown[key] = message.step_id
        episode = found.setdefault(key, RecordedEpisode(*key))
        elapsed = float(times[number])
        episode.began = elapsed if not episode.frames else episode.began
        episode.ended, episode.frames = elapsed, episode.frames + 1
        episode.entries.append(number)
    return list(found.values())


def trace_episode(recording: Recording, episode: RecordedEpisode) -> EpisodeTrace:
    """Return the trace of an episode.

    Raises:
        RecordError: The episode has more than `MOST_FRAMES` observations or `MOST_RAYS` rays, or the sensor changed.
    """
    if len(episode.entries) > MOST_FRAMES:
        raise RecordError(f"an episode of {len(episode.entries):,} observations; at most {MOST_FRAMES:,} are shown")
    wanted, digest = set(episode.entries), Digest(row=episode.drone)
    frames: list[DistanceMatrix] = []
    scalars: list[dict[str, float]] = []
    seen = 0
    for number in range(episode.entries[-1] + 1):
        message = recording.readable_message(recording.frames[number])
        if message is None:
            continue
        digest.update(message)
        if number in wanted and isinstance(message, DistanceMatrix):
            seen += message.depth.size
            if seen > MOST_RAYS:
                raise RecordError(
                    f"an episode of more rays than are shown, {MOST_RAYS:,}; fly a shorter one, or a smaller sensor"
                )
            frames.append(message)
            scalars.append(dict(digest.step))
    bins = frames[0].matrix_shape
    if any(frame.matrix_shape != bins for frame in frames):
        raise RecordError(f"{recording.path}: the sensor of drone {episode.drone} changed within an episode")
    import torch

    depth = denormalise_depth(torch.from_numpy(np.stack([f.depth[0] for f in frames])), digest.max_distance).numpy()
    names = [name for name in ("reward", "speed", "seen_share", *REWARD_TERMS) if any(name in s for s in scalars)]
    return EpisodeTrace(
        name=f"drone {episode.drone}, episode {episode.episode}",
        positions=np.array([[f.robot_pose.x, f.robot_pose.y, f.robot_pose.z] for f in frames], np.float32),
        yaws=np.array([f.robot_pose.yaw for f in frames], np.float32),
        depth=depth,
        semantic=np.stack([f.semantic[0] for f in frames]).astype(np.uint16),
        valid=np.stack([f.valid_mask[0] for f in frames]),
        directions=spherical_directions(*bins).numpy(),
        seconds=recording.frames.elapsed()[episode.entries],
        scalars={name: np.array([s.get(name, math.nan) for s in scalars]) for name in names},
    )
