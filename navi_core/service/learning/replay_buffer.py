"""The experience buffer: pending and completed decisions, the oldest first to go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate.gate import COMPONENTS
from navi_core.service.learning.experience import Experience
from navi_core.service.learning.training_reward import training_reward
from navi_core.service.learning.trajectory import Trail
from navi_core.service.timed_lock import TimedLock

__all__ = ["ExperienceReplayBuffer", "Sample"]

_LOG = logging.getLogger("navi.service")
_ROW = np.dtype(
    [
        ("position", "f4", 3), ("yaw", "f4"), ("velocity", "f4", 4), ("action", "f4", 4), ("log_prob", "f4"),
        ("value", "f4"), ("expected", "f4"), ("actual", "f4"), ("components", "f4", len(COMPONENTS)), ("time", "f8"),
        ("session", "i4"), ("version", "i4"), ("scene", "i2"), ("place", "i2"), ("send", "?"), ("done", "?"),
    ]
)  # fmt: skip

_Pending = tuple[np.ndarray, Trail, list[np.ndarray] | None, bool]
"""Row, trail, packed observation, and whether it will be learned from."""


@dataclass(frozen=True)
class Sample:
    """N completed experiences.

    Attributes:
        rows: (N,) structured: position, yaw, velocity, action, log_prob, value, expected, actual, send, …
        trails: Trail of each; `rows["place"]` is its place there.
        observation: (N, 3, Az, El), None where latents are stored.
    """

    rows: np.ndarray
    trails: list[Trail]
    observation: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Tensor:
        """Return a column as a tensor of its own."""
        return torch.from_numpy(np.ascontiguousarray(self.rows[name]))


class ExperienceReplayBuffer:
    """Keeps experiences in columns; thread-safe, and never waits for its lock longer than `lock_timeout`.

    One experience of a session is pending at a time: the newest replaces an older one that never completed. Only
    completed ones count against the capacity, are sampled, and go when they are the oldest.

    Args:
        config: Capacity, what is stored, lock timeout.
        seed: Of the samples.
        gated: Whether a gate tells what is expected; without one the reward that comes counts whole.

    Attributes:
        lock: Held while columns change; what can be prepared is prepared before.
    """

    def __init__(self, config: ContinuousTrainingConfig | None = None, seed: int = 0, *, gated: bool = True) -> None:
        self.config = c = config or ContinuousTrainingConfig()
        self._gated = gated
        self.lock = TimedLock()
        self._rng = np.random.default_rng(seed)
        self._capacity = c.buffer_capacity
        self._rows, self._trail_of, self._observations = self._columns()
        self._first, self._count = 0, 0
        self._pending: dict[int, _Pending] = {}
        self._open: dict[int, Trail] = {}
        self._width: int | None = None
        self._added = self._sampled = self._refused = self._evicted = self._unlearned = 0
        self._trails: dict[int, list[Any]] = {}
        self._trail_bytes = self._observation_bytes = 0

    def __len__(self) -> int:
        return self._count + len(self._pending)

    @property
    def nbytes(self) -> int:
        """Memory of rows, trails and observations [bytes]."""
        return self._count * (_ROW.itemsize + 16) + self._trail_bytes + self._observation_bytes

    def add(self, experience: Experience, *, learn: bool = True) -> bool:
        """Add an experience; returns whether it was taken.

        A pending one waits for `update_pending_reward`. One that is not finite or of another width is refused.

        Args:
            experience: The decision.
            learn: Keep it to learn from; false keeps it alone as the past of later ones.
        """
        fault = experience.fault(self._width)
        if fault is not None:
            self._refused += 1
            _LOG.warning("an experience of session %d is refused: %s", experience.session_id, fault)
            self._open.pop(experience.session_id, None)
            return False
        packed = None if experience.observation is None else _packed(experience.observation)
        row = _row(experience)
        spare = self._new_trail(experience) if self._begins_trail(experience) else None
        gone: list[Any] = []
        with self._locked() as held:
            if not held:
                return False
            self._width = len(experience.latent)
            if self._begins_trail(experience):
                # Another thread may have cleared the buffer meanwhile.
                gone.append(self._open.get(experience.session_id))
                self._open[experience.session_id] = spare or self._new_trail(experience)
            trail = self._open[experience.session_id]
            row["place"] = trail.append(experience.latent, experience.aux, experience.value)
            self._added += 1
            gone.append(self._pending.pop(experience.session_id, None))
            if experience.actual_reward is None:
                self._pending[experience.session_id] = (row, trail, packed, learn)
            else:
                pending = (row, trail, packed, learn)
                gone += self._complete(pending, experience.actual_reward, experience.ends, experience.terminated)
        # What goes is freed here, where nobody waits for it.
        del gone
        return True

    def update_pending_reward(
        self, session_id: int, reward: float, *, ends: bool = False, terminated: bool = False
    ) -> bool:
        """Complete the pending experience of a session; returns whether there was one.

        Args:
            session_id: The drone.
            reward: That came; one that is not finite drops the experience.
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
        # What goes is freed here, where nobody waits for it.
        del gone
        return True

    def end_trail(self, session_id: int, *, terminated: bool) -> None:
        """End the trail of a session whose last decision was complete before its episode ended.

        Args:
            session_id: The drone.
            terminated: Whether it ended because the task was done.
        """
        with self._locked() as held:
            if held and session_id in self._open:
                self._open[session_id].ended = True
                self._open[session_id].terminated |= terminated

    def drop_pending(self, session_id: int) -> bool:
        """Forget the pending experience of a session: its reward will never be known."""
        with self._locked() as held:
            if not held:
                return False
            pending = self._pending.pop(session_id, None)
        return pending is not None

    def forget(self, session_id: int) -> None:
        """Let go what waits for more of a session: its drone is gone. What is complete stays."""
        with self._locked() as held:
            gone = (self._pending.pop(session_id, None), self._open.pop(session_id, None)) if held else None
        # What goes is freed here, where nobody waits for it.
        del gone

    def sample(self, count: int) -> Sample | None:
        """Draw completed experiences without replacement.

        Args:
            count: How many; fewer where there are fewer.

        Returns:
            None where there is none, or where the lock was not to be had in time.
        """
        with self._locked() as held:
            if not held or self._count == 0:
                return None
            chosen = self._rng.choice(self._count, min(count, self._count), replace=False)
            index = (self._first + chosen) % self._capacity
            self._sampled += len(index)
            rows, trails = self._rows[index], [self._trail_of[i] for i in index]
            packed = [self._observations[i] for i in index]
        kept = [trail for trail in trails if trail is not None]
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
        """Forget everything but the totals."""
        columns, before = self._columns(), None
        with self._locked() as held:
            if held:
                before = self._rows, self._trail_of, self._observations, self._trails, self._pending, self._open
                self._rows, self._trail_of, self._observations = columns
                self._first = self._count = self._trail_bytes = self._observation_bytes = 0
                self._pending, self._open, self._trails = {}, {}, {}
                # Another network may come, whose latents are of another width.
                self._width = None
        # What was forgotten is freed here, where nobody waits for it.
        del before

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock; false where it is not to be had in time, which is warned of."""
        with self.lock.held(self.config.lock_timeout) as held:
            if not held:
                _LOG.warning("the experience buffer was locked for %.1f s; nothing was done", self.config.lock_timeout)
            yield held

    def _columns(self) -> tuple[np.ndarray, list[Trail | None], list[list[np.ndarray] | None]]:
        """Return empty columns for the whole capacity: pages of rows that were never written take no memory."""
        return np.zeros(self._capacity, _ROW), [None] * self._capacity, [None] * self._capacity

    def _begins_trail(self, experience: Experience) -> bool:
        """Tell whether an experience goes on none of the open trails."""
        trail = self._open.get(experience.session_id)
        return trail is None or trail.full or trail.ended or experience.begins

    def _new_trail(self, experience: Experience) -> Trail:
        state = None if experience.begins else experience.recurrent_state
        return Trail(self.config.state_interval, len(experience.latent), state)

    def _complete(self, pending: _Pending, reward: float, ends: bool, terminated: bool) -> list[Any]:
        """Take the reward of a decision; returns what was evicted for it, to be freed without the lock."""
        gone: list[Any] = []
        row, trail, packed, learn = pending
        row["actual"], row["done"] = reward, ends
        worth = training_reward(reward, float(row["expected"]), None, self.config) if self._gated else reward
        trail.reward[int(row["place"])] = worth
        trail.ended |= ends
        trail.terminated |= terminated
        if not learn:
            self._unlearned += 1
            return gone
        while self._count >= self._capacity or (self._count and self.nbytes > self.config.buffer_bytes):
            gone.append(self._evict())
        place = (self._first + self._count) % self._capacity
        self._rows[place], self._trail_of[place], self._observations[place] = row, trail, packed
        self._count += 1
        self._observation_bytes += 0 if packed is None else sum(part.nbytes for part in packed)
        # A trail lives as long as one of its decisions does.
        known = self._trails.setdefault(id(trail), [trail, 0, 0])
        known[1] += 1
        self._trail_bytes += trail.nbytes - known[2]
        known[2] = trail.nbytes
        return gone

    def _evict(self) -> tuple[Trail | None, list[np.ndarray] | None]:
        """Let the oldest go, and return it."""
        trail, packed = self._trail_of[self._first], self._observations[self._first]
        self._trail_of[self._first] = self._observations[self._first] = None
        self._observation_bytes -= 0 if packed is None else sum(part.nbytes for part in packed)
        known = self._trails[id(trail)]
        known[1] -= 1
        if known[1] == 0:
            self._trail_bytes -= known[2]
            del self._trails[id(trail)]
        self._first = (self._first + 1) % self._capacity
        self._count -= 1
        self._evicted += 1
        return trail, packed


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
