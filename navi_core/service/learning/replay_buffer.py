"""Experience replay buffer of pending and completed decisions, with first-in-first-out eviction."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
        ("value", "f4"), ("expected", "f4"), ("actual", "f4"), ("components", "f4", len(COMPONENTS)), ("scene", "i2"),
        ("place", "i2"), ("send", "?"),
    ]
)  # fmt: skip


@dataclass(slots=True, eq=False)
class _Entry:
    """Buffer entry of one experience, pending or completed."""

    row: np.ndarray
    """Structured scalar of dtype `_ROW`, shape ()."""
    trajectory: Trajectory
    observation: list[np.ndarray]
    """Packed parts of the observation; empty where latents are stored."""
    learn: bool
    """Whether the entry may be sampled."""

    @property
    def nbytes(self) -> int:
        """Memory without the trajectory [bytes]."""
        return _ROW.itemsize + 16 + sum(part.nbytes for part in self.observation)


class ExperienceReplayBuffer:
    """Experience replay buffer of all sessions; thread-safe; waits for its lock at most `lock_timeout`.

    One experience of a session is pending at a time: the newest replaces an older one that never completed. Only
    completed ones count against the capacity, are sampled and are evicted. What leaves the buffer is freed without the
    lock, when a method returns.

    Args:
        config: Capacity, what is stored, lock timeout.
        seed: Seed of the random samples.
        gated: Whether a gate expects rewards; without one the actual reward counts whole.

    Attributes:
        lock: Held while experiences are added, completed or dropped.
        nbytes: Memory of completed experiences and their trajectories [bytes].
    """

    def __init__(self, config: ContinuousTrainingConfig | None = None, seed: int = 0, *, gated: bool = True) -> None:
        self.config, self._gated = config or ContinuousTrainingConfig(), gated
        self.lock = TimedLock()
        self._rng = np.random.default_rng(seed)
        self._completed: deque[_Entry] = deque()
        self._pending: dict[int, _Entry] = {}
        self._open: dict[int, Trajectory] = {}
        self._width: int | None = None
        self._added = self._sampled = self._refused = self._evicted = self._unlearned = self.nbytes = 0

    def __len__(self) -> int:
        return len(self._completed) + len(self._pending)

    def add(self, experience: Experience, *, learn: bool = True) -> bool:
        """Add an experience, pending or complete; return whether it was added.

        A pending one waits for `update_pending_reward`. One that is not finite or of another width is refused.

        Args:
            experience: Experience of the decision.
            learn: Sample it later; false keeps it in the trajectory of later ones alone.
        """
        drone, fault = experience.session_id, experience.fault(self._width)
        if fault is not None:
            self._refused += 1
            _LOG.warning("an experience of session %d is refused: %s", drone, fault)
            self._open.pop(drone, None)
            return False
        row, packed = _row(experience), _packed(experience.observation)
        gone: list[object] = []
        with self._locked() as held:
            if not held:
                return False
            self._width = len(experience.latent)
            trajectory = self._open.get(drone)
            if trajectory is None or trajectory.full or trajectory.ended or experience.begins:
                gone.append(trajectory)
                state = None if experience.begins else experience.recurrent_state
                widths = self._width, len(experience.aux)
                trajectory = self._open[drone] = Trajectory(self.config.state_interval, *widths, state)
            row["place"] = trajectory.append(experience.latent, experience.aux, experience.value)
            self._added += 1
            gone.append(self._pending.pop(drone, None))
            entry = _Entry(row, trajectory, packed, learn)
            if experience.actual_reward is None:
                self._pending[drone] = entry
            else:
                gone += self._complete(entry, experience.actual_reward, experience.ends, experience.terminated)
        return True

    def update_pending_reward(
        self, session_id: int, reward: float, *, ends: bool = False, terminated: bool = False
    ) -> bool:
        """Complete the pending experience of a session with its reward; return whether there was one.

        Args:
            session_id: Number of the drone.
            reward: Actual reward; one that is not finite drops the experience.
            ends: Whether the episode ended with it.
            terminated: Whether it ended because the task was done.
        """
        with self._locked() as held:
            if not held or session_id not in self._pending:
                return False
            entry = self._pending.pop(session_id)
            if not np.isfinite(reward):
                self._refused += 1
                return False
            _gone = self._complete(entry, reward, ends, terminated)
        return True

    def end_trajectory(self, session_id: int, *, terminated: bool) -> None:
        """Close the trajectory of a session whose last decision was complete before its episode ended.

        Args:
            session_id: Number of the drone.
            terminated: Whether it ended because the task was done.
        """
        with self._locked() as held:
            if held and session_id in self._open:
                self._open[session_id].ended = True
                self._open[session_id].terminated |= terminated

    def drop_pending(self, session_id: int) -> bool:
        """Drop the pending experience of a session, whose reward is lost; return whether there was one."""
        with self._locked() as held:
            gone = self._pending.pop(session_id, None) if held else None
        return gone is not None

    def forget(self, session_id: int) -> None:
        """Drop the pending experience and the open trajectory of a session; completed experiences stay."""
        with self._locked() as held:
            _gone = (self._pending.pop(session_id, None), self._open.pop(session_id, None)) if held else None

    def sample(self, count: int) -> Sample | None:
        """Sample a batch of completed experiences uniformly without replacement.

        Args:
            count: Number to draw; fewer where there are fewer.

        Returns:
            None where there is none, or the lock timed out.
        """
        with self._locked() as held:
            if not held or not self._completed:
                return None
            chosen = self._rng.choice(len(self._completed), min(count, len(self._completed)), replace=False)
            self._sampled += len(chosen)
            entries = [self._completed[i] for i in chosen]
            rows = np.stack([entry.row for entry in entries])
        whole = all(entry.observation for entry in entries)
        observation = torch.stack([_unpacked(*entry.observation) for entry in entries]) if whole else None
        return Sample(rows, [entry.trajectory for entry in entries], observation)

    def get_stats(self) -> dict[str, float]:
        """Return buffer statistics: size, pending and completed counts, totals, capacity, utilization, bytes."""
        with self._locked():
            completed, pending = len(self._completed), len(self._pending)
        return {
            "buffer_size": completed + pending,
            "pending_count": pending,
            "completed_count": completed,
            "total_added": self._added,
            "total_sampled": self._sampled,
            "total_refused": self._refused,
            "total_evicted": self._evicted,
            "total_unlearned": self._unlearned,
            "capacity": self.config.buffer_capacity,
            "utilization": (completed + pending) / self.config.buffer_capacity,
            "bytes": self.nbytes,
        }

    def clear(self) -> None:
        """Drop all experiences and open trajectories; the total counts stay."""
        with self._locked() as held:
            _gone = self._completed, self._pending, self._open
            if held:
                self._completed, self._pending, self._open = deque(), {}, {}
                self.nbytes = 0
                # The next network may have latents of another width.
                self._width = None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Context manager that acquires the lock; yields false after a timeout, with a warning."""
        with self.lock.held(self.config.lock_timeout) as held:
            if not held:
                _LOG.warning("the experience buffer was locked for %.1f s; nothing was done", self.config.lock_timeout)
            yield held

    def _complete(self, entry: _Entry, reward: float, ends: bool, terminated: bool) -> list[_Entry]:
        """Set the reward of an entry; return the evicted entries, to be freed without the lock."""
        row, trajectory = entry.row, entry.trajectory
        row["actual"] = reward
        training = training_reward(reward, float(row["expected"]), None, self.config) if self._gated else reward
        trajectory.reward[int(row["place"])] = training
        trajectory.ended |= ends
        trajectory.terminated |= terminated
        if not entry.learn:
            self._unlearned += 1
            return []
        gone = []
        full, most = self.config.buffer_capacity, self.config.buffer_bytes
        while len(self._completed) >= full or (self._completed and self.nbytes > most):
            gone.append(self._evict())
        self._completed.append(entry)
        # A trajectory lives as long as one of its decisions does.
        trajectory.entries += 1
        self.nbytes += entry.nbytes + trajectory.grown()
        return gone

    def _evict(self) -> _Entry:
        """Evict and return the oldest completed experience."""
        entry = self._completed.popleft()
        entry.trajectory.entries -= 1
        self.nbytes += entry.trajectory.grown() - entry.nbytes
        self._evicted += 1
        return entry


def _row(experience: Experience) -> np.ndarray:
    """Convert an experience to a NumPy structured-array record, pending (NaN reward) and without a trajectory index."""
    vectors = (experience.position.numpy(), experience.yaw, experience.velocity.numpy(), experience.action.numpy())
    components = [experience.components.get(name, 0.0) for name in COMPONENTS]
    numbers = (experience.log_prob, experience.value, experience.expected_reward, np.nan, components)
    return np.array((*vectors, *numbers, experience.scene, 0, experience.gate_send), _ROW)


def _packed(observation: Tensor | None) -> list[np.ndarray]:
    """Compress an observation (3, Az, El): half-precision depth, byte ids, valid mask as bits."""
    if observation is None:
        return []
    obs = observation.numpy()
    return [obs[0].astype(np.float16), np.clip(obs[1], 0, 255).astype(np.uint8), np.packbits(obs[2] > 0)]


def _unpacked(depth: np.ndarray, semantic: np.ndarray, bits: np.ndarray) -> Tensor:
    valid = np.unpackbits(bits, count=depth.size).reshape(depth.shape)
    return torch.from_numpy(np.stack([depth.astype(np.float32), semantic.astype(np.float32), valid.astype(np.float32)]))
