"""Metrics of continuous training, over the last hundred updates and over its lifetime."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW = 100
"""Updates of the rolling window."""


class TrainingMetrics:
    """Counts of updates, samples, agreements and errors; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updates: deque[tuple[float, int, float, int, int]] = deque(maxlen=WINDOW)
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._started: float | None = None
        self._uptime = 0.0
        self.total_steps = self.total_samples = self.errors = 0
        self.total_agreed = self.total_judged = 0
        self.last_error = ""

    def started(self) -> None:
        """Start the uptime."""
        self._started = time.monotonic()

    def stopped(self) -> None:
        """Stop the uptime."""
        if self._started is not None:
            self._uptime += time.monotonic() - self._started
            self._started = None

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
            self._updates.append((loss, samples, seconds, agreed, judged))
            self._times.append(time.monotonic())
            self.total_steps += 1
            self.total_samples += samples
            self.total_agreed += agreed
            self.total_judged += judged

    def error(self, reason: str) -> None:
        """Count an error that the loop survived."""
        with self._lock:
            self.errors += 1
            self.last_error = reason

    def snapshot(self, *, is_running: bool, model_version: int) -> dict[str, Any]:
        """Return the `training` part of the status."""
        with self._lock:
            updates, times = list(self._updates), list(self._times)
            steps, samples, errors = self.total_steps, self.total_samples, self.errors
            agreed, judged = self.total_agreed, self.total_judged
        number = max(len(updates), 1)
        span = times[-1] - times[0] if len(times) > 1 else 0.0
        up = self._uptime + (0.0 if self._started is None else time.monotonic() - self._started)
        return {
            "is_running": is_running,
            "model_version": model_version,
            "steps_per_second": (len(times) - 1) / span if span > 0 else 0.0,
            "average_loss": sum(u[0] for u in updates) / number,
            "average_batch_size": sum(u[1] for u in updates) / number,
            "average_step_time_ms": 1e3 * sum(u[2] for u in updates) / number,
            "average_gate_agreement": _share(sum(u[3] for u in updates), sum(u[4] for u in updates)),
            "lifetime_gate_agreement": _share(agreed, judged),
            "total_steps": steps,
            "total_samples_trained": samples,
            "uptime_seconds": up,
            "errors": errors,
        }

    @staticmethod
    def status(training: Mapping[str, Any], buffer: Mapping[str, float]) -> dict[str, Any]:
        """Return the status as plain data: `training`, and `buffer` by its public names."""
        names = {"size": "buffer_size"} | {
            n: n for n in ("capacity", "utilization", "pending_count", "completed_count")
        }
        return {"training": dict(training), "buffer": {name: buffer[source] for name, source in names.items()}}


def _share(agreed: int, judged: int) -> float:
    return agreed / judged if judged else 1.0
