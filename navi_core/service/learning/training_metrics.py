"""Metrics of continuous training, over the last hundred updates and over its lifetime."""

import threading
import time
from collections import deque
from typing import Any

import numpy as np

WINDOW = 100
"""Updates of the rolling window."""


class TrainingMetrics:
    """Counts of updates, samples, agreements and errors; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Time, loss, samples, seconds, agreed and judged of each update.
        self._updates: deque[tuple[float, ...]] = deque(maxlen=WINDOW)
        self._started: float | None = None
        self._uptime = 0.0
        self.total_steps = self.total_samples = self.errors = self.total_agreed = self.total_judged = 0

    def started(self) -> None:
        """Start the uptime."""
        self._started = time.monotonic()

    def stopped(self) -> None:
        """Stop the uptime."""
        self._uptime, self._started = self._seconds_up(), None

    def record(self, *, loss: float, samples: int, seconds: float, agreed: int, judged: int) -> None:
        """Add one update.

        Args:
            loss: Of the update.
            samples: Experiences learned from.
            seconds: Its duration [s].
            agreed: Experiences that the gate judges as before.
            judged: Experiences that it was asked about.
        """
        with self._lock:
            self._updates.append((time.monotonic(), loss, samples, seconds, agreed, judged))
            self.total_steps += 1
            self.total_samples += samples
            self.total_agreed += agreed
            self.total_judged += judged

    def error(self) -> None:
        """Count an error that the loop survived."""
        self.errors += 1

    def snapshot(self, *, is_running: bool, model_version: int) -> dict[str, Any]:
        """Return the `training` part of the status."""
        with self._lock:
            updates = np.reshape(self._updates, (-1, 6)).T.tolist()
            steps, samples, agreed, judged = self.total_steps, self.total_samples, self.total_agreed, self.total_judged
        times, number = updates[0], max(len(updates[0]), 1)
        span = times[-1] - times[0] if times else 0.0
        _, loss, batch, seconds, lately_agreed, lately_judged = map(sum, updates)
        return {
            "is_running": is_running,
            "model_version": model_version,
            "steps_per_second": (number - 1) / span if span > 0 else 0.0,
            "average_loss": loss / number,
            "average_batch_size": batch / number,
            "average_step_time_ms": 1e3 * seconds / number,
            "average_gate_agreement": lately_agreed / lately_judged if lately_judged else 1.0,
            "lifetime_gate_agreement": agreed / judged if judged else 1.0,
            "total_steps": steps,
            "total_samples_trained": samples,
            "uptime_seconds": self._seconds_up(),
            "errors": self.errors,
        }

    def _seconds_up(self) -> float:
        return self._uptime + (0.0 if self._started is None else time.monotonic() - self._started)
