"""Recordings of wire messages: reader, writer, and conversion of episodes to traces for the Rerun viewer.

A recording is a journal (`record/journal.py`). The payload of a frame is the message's MessagePack bytes, its topic
that of the message. Files of the first format ("NAVIREC1": frames without mark and check) are read and continued as
they are. Nothing is unpickled.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from navi_core.config import REWARD_TERMS, WireConfig
from navi_core.errors import ConfigError, RecordError, WireError
from navi_core.record.journal import Frame, FrameFormat, Journal, JournalWriter
from navi_core.record.rerun import EpisodeTrace
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import OBSERVATIONS, TELEMETRY, DroneSelector
from navi_core.service.viewing.meshes import key_of, stored_mesh, unpack_mesh
from navi_core.service.wire import DistanceMatrix, Message, decode
from navi_core.service.wire.sockets import Subscriber
from navi_core.world import spherical_directions
from navi_core.world.sensor.panorama import denormalise_depth

FORMATS = (FrameFormat(b"NAVIREC1", checked=False), FrameFormat(b"NAVIREC2"))
_KIND = "recording of a session"
_SYNC_SECONDS = 1.0


class Recording(Journal):
    """Reader of a recording of wire messages; use it as a context manager.

    Args:
        path: File of the recording.
        limits: Size of a message.

    Raises:
        RecordError: No such file, or it is no recording; the offset of the damage is named.
    """

    def __init__(self, path: Path, limits: WireConfig | None = None) -> None:
        if not path.exists():
            raise RecordError(f"{path}: no such file; record a session with `navi record`")
        self._limits = limits or WireConfig()
        self._damaged: set[int] = set()
        super().__init__(path, FORMATS, kind=_KIND, max_bytes=self._limits.max_message_bytes)

    @property
    def seconds(self) -> float:
        """Duration from the first message to the last [s]; a clock that is set back stands still meanwhile."""
        return float(self.frames.elapsed()[-1]) if self.frames else 0.0

    @property
    def damaged(self) -> int:
        """Number of messages that `readable_message` skipped because their bytes are damaged."""
        return len(self._damaged)

    def message(self, frame: Frame) -> Message:
        """Decode the message of a frame.

        Raises:
            RecordError: Its bytes are damaged.
            WireError: They are no message of the wire.
        """
        return decode(self.read(frame), self._limits)

    def readable_message(self, frame: Frame) -> Message | None:
        """Decode the message of a frame; None if it is damaged or invalid.

        Its bytes are damaged, or the wire would refuse it today: its bounds may be younger than the file.
        """
        try:
            return self.message(frame)
        except WireError:
            return None
        except RecordError:
            self._damaged.add(frame.offset)
            return None

    def messages(self) -> Iterator[tuple[float, Message]]:
        """Yield the receive time and the decoded content of every message."""
        for frame in self.frames:
            yield frame.time, self.message(frame)


class RecordingWriter(JournalWriter):
    """Writer of a recording; appends to an earlier recording of the same path.

    Raises:
        RecordError: It cannot be written, another process writes it, or it is another kind of file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, FORMATS, kind=_KIND, max_bytes=WireConfig().max_message_bytes)
        self._synced = time.monotonic()

    def record(self, topic: bytes, payload: bytes, when: float) -> None:
        """Append one validated message; it is synced to disk a second later at most.

        Args:
            topic: Topic of the message.
            payload: MessagePack bytes of the message.
            when: When it was received [s since 1970].

        Raises:
            RecordError: The disk is full.
        """
        self.append(topic, payload, when, pack=True)
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self.sync()
            self._synced = time.monotonic()

    def close(self) -> None:
        """Sync the file to disk and close it.

        Raises:
            RecordError: It could not be made durable.
        """
        try:
            self.sync()
        finally:
            super().close()


@dataclass
class Recorded:
    """Statistics of a recording session."""

    messages: Counter[str] = field(default_factory=Counter)
    """Number of messages by topic."""
    refused: int = 0
    """Number of messages that broke the wire format and were left out."""
    seconds: float = 0.0
    """Duration [s]."""
    cut: int = 0
    """Bytes of an earlier recording's unfinished last message that were truncated."""


def record_session(
    endpoints: Sequence[str],
    path: Path,
    *,
    drone: int | None = None,
    seconds: float | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Recorded], None] | None = None,
    limits: WireConfig | None = None,
) -> Recorded:
    """Record the messages of publishers to a file until stopped; every message is validated before it is kept.

    Args:
        endpoints: Publishers.
        path: The file; an earlier recording there is continued.
        drone: Drone to ask for; None takes those that are shown.
        seconds: Duration [s]; None until stopped.
        stop: Called several times a second; true ends the recording.
        progress: Called several times a second with the counts so far.
        limits: Queue and message limits of the sockets.

    Raises:
        ConfigError: `seconds` is not above 0.
        RecordError: The file cannot be written, is written by another process, or is something else.
    """
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"cannot record for {seconds} s; give more than 0, or nothing to record until stopped")
    limits, began = limits or WireConfig(), time.monotonic()
    selectors = [DroneSelector(endpoint, limits) for endpoint in endpoints] if drone is not None else []
    subscriber = Subscriber(endpoints, (OBSERVATIONS, *TELEMETRY), limits)
    done = Recorded()
    try:
        for selector in selectors:
            selector.select(drone or 0)
        with RecordingWriter(path) as writer:
            done.cut = writer.cut
            while (seconds is None or done.seconds < seconds) and not (stop is not None and stop()):
                for selector in selectors:
                    selector.keep()
                subscriber.socket.raw.poll(100)
                for (topic, payload), _ in subscriber.arrived():
                    writer.record(topic, payload, time.time())
                    done.messages[topic.decode()] += 1
                done.refused = subscriber.refused
                done.seconds = time.monotonic() - began
                if progress is not None:
                    progress(done)
    finally:
        subscriber.close()
        for selector in selectors:
            selector.close()
    return done


MOST_FRAMES = 100_000
MOST_RAYS = 2**26
"""Limits of one trace: observations and rays; each ray takes about twenty bytes."""


@dataclass
class RecordedEpisode:
    """Index entry of one drone's episode in a recording."""

    drone: int
    """Number of the drone."""
    episode: int
    """Number of the episode."""
    began: float
    """Time of the first observation since the start of the recording [s]."""
    ended: float
    """Time of the last observation since the start of the recording [s]."""
    entries: array[int] = field(repr=False)
    """Indices of the episode's observations among the recording's messages."""

    @property
    def frames(self) -> int:
        """Number of observations."""
        return len(self.entries)


def list_episodes(recording: Recording) -> list[RecordedEpisode]:
    """Scan a recording and return its episodes, in the order in which they begin."""
    found: defaultdict[tuple[int, int], array[int]] = defaultdict(lambda: array("Q"))
    shown: dict[tuple[int, int], int] = {}
    for number, frame in enumerate(recording.frames):
        message = recording.readable_message(frame)
        if not isinstance(message, DistanceMatrix) or len(message.env_ids) != 1:
            continue
        key = (int(message.env_ids[0]), message.episode_id)
        # A heartbeat repeats an observation.
        if shown.get(key) != message.step_id:
            shown[key] = message.step_id
            found[key].append(number)
    times = recording.frames.elapsed().tolist()
    return [RecordedEpisode(*key, times[entries[0]], times[entries[-1]], entries) for key, entries in found.items()]


def trace_episode(recording: Recording, episode: RecordedEpisode) -> EpisodeTrace:
    """Convert a recorded episode to a trace for the Rerun viewer.

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
        mesh=unpack_mesh(packed) if (packed := stored_mesh(key_of(digest.scene))) else None,
    )
