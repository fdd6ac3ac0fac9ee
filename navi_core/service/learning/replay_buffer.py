"""Experience buffer: pending and completed decisions, the oldest evicted first."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate import COMPONENTS
from navi_core.service.learning.experience import Experience, Sample, Trajectory, training_reward
from navi_core.service.timed_lock import TimedLock

_LOG = logging.getLogger("navi.service")
_ROW = np.dtype(
    [
        ("position", "f4", 3), ("yaw", "f4"), ("velocity", "f4", 4), ("action", "f4", 4), ("log_prob", "f4"),
        ("value", "f4"), ("expected", "f4"), ("actual", "f4"), ("components", "f4", len(COMPONENTS)), ("time", "f8"),
        ("session", "i4"), ("version", "i4"), ("scene", "i2"), ("place", "i2"), ("send", "?"), ("done", "?"),
    ]
)  # fmt: skip

_Pending = tuple[np.ndarray, Trajectory, list[np.ndarray] | None, bool]
"""Row, trajectory, packed observation, and whether it may be sampled."""


class ExperienceReplayBuffer:
    """Experiences in columns; thread-safe, and never waits for its lock longer than `lock_timeout`.

    One experience of a session is pending at a time: the newest replaces an older one that never completed. Only
    completed ones count against the capacity, are sampled and are evicted.

    Args:
        config: Capacity, what is stored, lock timeout.
        seed: Of the samples.
        gated: Whether a gate expects rewards; without one the actual reward counts whole.

    Attributes:
        lock: Held while columns change.
    """

    def __init__(self, config: ContinuousTrainingConfig | None = None, seed: int = 0, *, gated: bool = True) -> None:
        self.config = c = config or ContinuousTrainingConfig()
        self._gated = gated
        self.lock = TimedLock()
        self._rng = np.random.default_rng(seed)
        self._capacity = c.buffer_capacity
        self._rows, self._trajectory_of, self._observations = self._columns()
        self._first, self._count = 0, 0
        self._pending: dict[int, _Pending] = {}
        self._open: dict[int, Trajectory] = {}
        self._width: int | None = None
        self._added = self._sampled = self._refused = self._evicted = self._unlearned = 0
        self._trajectories: dict[int, list[Any]] = {}
        self._trajectory_bytes = self._observation_bytes = 0

    def __len__(self) -> int:
        return self._count + len(self._pending)

    @property
    def nbytes(self) -> int:
        """Memory of rows, trajectories and observations [bytes]."""
        return self._count * (_ROW.itemsize + 16) + self._trajectory_bytes + self._observation_bytes

    def add(self, experience: Experience, *, learn: bool = True) -> bool:
        """Add an experience; return whether it was added.

        A pending one waits for `update_pending_reward`. One that is not finite or of another width is refused.

        Args:
            experience: The decision.
            learn: Sample it later; false keeps it in the trajectory of later ones alone.
        """
        fault = experience.fault(self._width)
        if fault is not None:
            self._refused += 1
            _LOG.warning("an experience of session %d is refused: %s", experience.session_id, fault)
            self._open.pop(experience.session_id, None)
            return False
        packed = None if experience.observation is None else _packed(experience.observation)
        row = _row(experience)
        spare = self._new_trajectory(experience) if self._begins_trajectory(experience) else None
        gone: list[Any] = []
        with self._locked() as held:
            if not held:
                return False
            self._width = len(experience.latent)
            if self._begins_trajectory(experience):
                # Another thread may have cleared the buffer meanwhile.
                gone.append(self._open.get(experience.session_id))
                self._open[experience.session_id] = spare or self._new_trajectory(experience)
            trajectory = self._open[experience.session_id]
            row["place"] = trajectory.append(experience.latent, experience.aux, experience.value)
            self._added += 1
            gone.append(self._pending.pop(experience.session_id, None))
            if experience.actual_reward is None:
                self._pending[experience.session_id] = (row, trajectory, packed, learn)
            else:
                pending = (row, trajectory, packed, learn)
                gone += self._complete(pending, experience.actual_reward, experience.ends, experience.terminated)
        # Freed without the lock.
        del gone
        return True

    def update_pending_reward(
        self, session_id: int, reward: float, *, ends: bool = False, terminated: bool = False
    ) -> bool:
        """Complete the pending experience of a session; return whether there was one.

        Args:
            session_id: The drone.
            reward: Actual reward; one that is not finite drops the experience.
            ends: Whether the episode ended with it.
            terminated: Whether it ended because the task was done.
        """
        with self._locked() as held:
            if not held or session_id not in self._pending:
                return False
            pending = self._pending.pop(session_id)
            if not np.isfinite(reward):
                self._refused += 1
                return False
            gone = self._complete(pending, reward, ends, terminated)
        # Freed without the lock.
        del gone
        return True

    def end_trajectory(self, session_id: int, *, terminated: bool) -> None:
        """End the trajectory of a session whose last decision was complete before its episode ended.

        Args:
            session_id: The drone.
            terminated: Whether it ended because the task was done.
        """
        with self._locked() as held:
            if held and session_id in self._open:
                self._open[session_id].ended = True
                self._open[session_id].terminated |= terminated

    def drop_pending(self, session_id: int) -> bool:
        """Drop the pending experience of a session: its reward is lost."""
        with self._locked() as held:
            if not held:
                return False
            pending = self._pending.pop(session_id, None)
        return pending is not None

    def forget(self, session_id: int) -> None:
        """Drop the pending experience and the open trajectory of a session; completed experiences stay."""
        with self._locked() as held:
            gone = (self._pending.pop(session_id, None), self._open.pop(session_id, None)) if held else None
        # Freed without the lock.
        del gone

    def sample(self, count: int) -> Sample | None:
        """Draw completed experiences without replacement.

        Args:
            count: Number to draw; fewer where there are fewer.

        Returns:
            None where there is none, or the lock timed out.
        """
        with self._locked() as held:
            if not held or self._count == 0:
                return None
            chosen = self._rng.choice(self._count, min(count, self._count), replace=False)
            index = (self._first + chosen) % self._capacity
            self._sampled += len(index)
            rows, trajectories = self._rows[index], [self._trajectory_of[i] for i in index]
            packed = [self._observations[i] for i in index]
        kept = [trajectory for trajectory in trajectories if trajectory is not None]
        observation = None if any(p is None for p in packed) else torch.stack([_unpacked(p) for p in packed if p])
        return Sample(rows, kept, observation)

    def get_stats(self) -> dict[str, float]:
        """Return buffer_size, pending_count, completed_count, total_added, total_sampled, capacity, utilization."""
        with self._locked():
            completed, pending = self._count, len(self._pending)
        return {
            "buffer_size": completed + pending,
            "pending_count": pending,
            "completed_count": completed,
            "total_added": self._added,
            "total_sampled": self._sampled,
            "total_refused": self._refused,
            "total_evicted": self._evicted,
            "total_unlearned": self._unlearned,
            "capacity": self._capacity,
            "utilization": (completed + pending) / self._capacity,
            "bytes": self.nbytes,
        }

    def clear(self) -> None:
        """Drop everything but the totals."""
        columns, before = self._columns(), None
        with self._locked() as held:
            if held:
                before = (
                    self._rows,
                    self._trajectory_of,
                    self._observations,
                    self._trajectories,
                    self._pending,
                    self._open,
                )
                self._rows, self._trajectory_of, self._observations = columns
                self._first = self._count = self._trajectory_bytes = self._observation_bytes = 0
                self._pending, self._open, self._trajectories = {}, {}, {}
                # The next network may have latents of another width.
                self._width = None
        # Freed without the lock.
        del before

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock; yield false after a timeout, with a warning."""
        with self.lock.held(self.config.lock_timeout) as held:
            if not held:
                _LOG.warning("the experience buffer was locked for %.1f s; nothing was done", self.config.lock_timeout)
            yield held

    def _columns(self) -> tuple[np.ndarray, list[Trajectory | None], list[list[np.ndarray] | None]]:
        """Return empty columns for the whole capacity; unwritten pages take no memory."""
        return np.zeros(self._capacity, _ROW), [None] * self._capacity, [None] * self._capacity

    def _begins_trajectory(self, experience: Experience) -> bool:
        """Return whether an experience continues no open trajectory."""
        trajectory = self._open.get(experience.session_id)
        return trajectory is None or trajectory.full or trajectory.ended or experience.begins

    def _new_trajectory(self, experience: Experience) -> Trajectory:
        state = None if experience.begins else experience.recurrent_state
        return Trajectory(self.config.state_interval, len(experience.latent), state)

    def _complete(self, pending: _Pending, reward: float, ends: bool, terminated: bool) -> list[Any]:
        """Set the reward of a decision; return the evicted objects, to be freed without the lock."""
        gone: list[Any] = []
        row, trajectory, packed, learn = pending
        row["actual"], row["done"] = reward, ends
        training = training_reward(reward, float(row["expected"]), None, self.config) if self._gated else reward
        trajectory.reward[int(row["place"])] = training
        trajectory.ended |= ends
        trajectory.terminated |= terminated
        if not learn:
            self._unlearned += 1
            return gone
        while self._count >= self._capacity or (self._count and self.nbytes > self.config.buffer_bytes):
            gone.append(self._evict())
        place = (self._first + self._count) % self._capacity
        self._rows[place], self._trajectory_of[place], self._observations[place] = row, trajectory, packed
        self._count += 1
        self._observation_bytes += 0 if packed is None else sum(part.nbytes for part in packed)
        # A trajectory lives as long as one of its decisions does.
        known = self._trajectories.setdefault(id(trajectory), [trajectory, 0, 0])
        known[1] += 1
        self._trajectory_bytes += trajectory.nbytes - known[2]
        known[2] = trajectory.nbytes
        return gone

    def _evict(self) -> tuple[Trajectory | None, list[np.ndarray] | None]:
        """Remove and return the oldest experience."""
        trajectory, packed = self._trajectory_of[self._first], self._observations[self._first]
        self._trajectory_of[self._first] = self._observations[self._first] = None
        self._observation_bytes -= 0 if packed is None else sum(part.nbytes for part in packed)
        known = self._trajectories[id(trajectory)]
        known[1] -= 1
        if known[1] == 0:
            self._trajectory_bytes -= known[2]
            del self._trajectories[id(trajectory)]
        self._first = (self._first + 1) % self._capacity
        self._count -= 1
        self._evicted += 1
        return trajectory, packed


def _row(experience: Experience) -> np.ndarray:
    row = np.zeros((), _ROW)
    for name in ("position", "velocity", "action"):
        row[name] = getattr(experience, name).numpy()
    for name, value in (
        ("yaw", experience.yaw),
        ("log_prob", experience.log_prob),
        ("value", experience.value),
        ("expected", experience.expected_reward),
        ("actual", np.nan),
        ("components", [experience.components.get(name, 0.0) for name in COMPONENTS]),
        ("time", experience.timestamp),
        ("session", experience.session_id),
        ("version", experience.model_version),
        ("scene", experience.scene),
        ("send", experience.gate_send),
    ):
        row[name] = value
    return row


def _packed(observation: Tensor) -> list[np.ndarray]:
    """Return an observation (3, Az, El) as half-precision depth, byte ids and bits."""
    obs = observation.numpy()
    ids = np.clip(obs[1], 0, 255).astype(np.uint8)
    return [obs[0].astype(np.float16), ids, np.packbits(obs[2] > 0)]


def _unpacked(parts: list[np.ndarray]) -> Tensor:
    depth, semantic, bits = parts
    valid = np.unpackbits(bits, count=depth.size).reshape(depth.shape)
    return torch.from_numpy(np.stack([depth.astype(np.float32), semantic.astype(np.float32), valid.astype(np.float32)]))
